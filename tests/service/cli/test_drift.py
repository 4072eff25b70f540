"""`torchgate drift`: what the API says of the quality of each version, for people."""

from typing import Any

from service.cli.reports.drift import drift_text


def quality(**changes: Any) -> dict[str, Any]:
    version = {
        "version": "1.0",
        "state": "drifting",
        "reason": "",
        "window_items": 1000,
        "window_seconds": 39.1,
        "scores": [
            {"kind": "class", "value": 5.27, "threshold": 0.1},
            {"kind": "confidence", "value": 0.05, "threshold": 0.12},
        ],
        "classes": [{"label": str(n), "share": n / 1000, "reference_share": 0.1} for n in range(3)],
        "feedback": {"num_labelled": 50, "accuracy": 0.98},
        **changes,
    }
    return {"model": "digits", "versions": [version]}


def test_state_scores_classes_and_feedback() -> None:
    assert [line.split() for line in drift_text(quality()).splitlines()] == [
        ["digits", "1.0:", "drifting;", "the", "last", "1000", "images,", "in", "39.1", "s"],
        ["feedback:", "98.00%", "of", "50", "answers", "were", "right"],
        ["SCORE", "VALUE", "THRESHOLD"],
        ["class", "5.270", "0.100", "over"],
        ["confidence", "0.050", "0.120"],
        ["CLASS", "SHARE", "REFERENCE"],
        ["0", "0.0%", "10.0%"],
        ["1", "0.1%", "10.0%"],
        ["2", "0.2%", "10.0%"],
    ]


def test_without_a_score_it_says_why() -> None:
    nothing = [{"label": "0", "share": None, "reference_share": None}]
    feedback = {"num_labelled": 0, "accuracy": None}
    found = quality(
        state="unknown", reason="the contract has no reference", scores=[], classes=nothing, feedback=feedback
    )
    assert drift_text(found).splitlines() == [
        "digits 1.0: unknown; the contract has no reference",
        "feedback: none yet",
    ]
    assert drift_text({"model": "digits", "versions": []}) == "no version of digits is loaded"


def test_of_many_classes_those_that_changed_most_are_shown() -> None:
    classes = [{"label": f"c{n}", "share": n / 1000, "reference_share": 0.0} for n in range(50)]
    lines = drift_text(quality(classes=classes)).splitlines()
    assert lines[6].split()[0] == "c49"
    assert lines[-1] == "and 30 classes that changed less; --json has all"
