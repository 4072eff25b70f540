"""The verb `torchgate drift`."""

from collections.abc import Mapping
from typing import Any

from service.cli.tables import printable, table
from service.cli.verbs import add_verb

MOST_ROWS = 20


def add_drift_verb(verbs: Any) -> None:
    """Add the verb."""
    help_text = "show whether the answers of a model's versions drift, and their accuracy by feedback"
    add_verb(verbs, "drift", help_text, lambda g, o: g.quality(o.model), drift_text, "model")


def drift_text(quality: Mapping[str, Any]) -> str:
    """Return a paragraph for each version: its state, its scores and its classes."""
    if not quality["versions"]:
        return printable(f"no version of {quality['model']} is loaded")
    return "\n\n".join(_version(quality["model"], each) for each in quality["versions"])


def _version(model: str, version: Mapping[str, Any]) -> str:
    seen = f"the last {version['window_items']} images, in {version['window_seconds']:g} s"
    lines = [
        printable(f"{model} {version['version']}: {version['state']}; {version['reason'] or seen}"),
        f"feedback: {_feedback(version['feedback'])}",
    ]
    scores = [
        (each["kind"], f"{each['value']:.3f}", f"{each['threshold']:.3f}", _over(each)) for each in version["scores"]
    ]
    if scores:
        lines.append(table(("SCORE", "VALUE", "THRESHOLD", ""), scores))
    classes = [each for each in version["classes"] if each["share"] is not None]
    shown = classes if len(classes) <= MOST_ROWS else sorted(classes, key=_difference, reverse=True)[:MOST_ROWS]
    if shown:
        rows = [(each["label"], _percent(each["share"]), _percent(each["reference_share"])) for each in shown]
        lines.append(table(("CLASS", "SHARE", "REFERENCE"), rows))
    if num_more := len(classes) - len(shown):
        lines.append(f"and {num_more} classes that changed less; --json has all")
    return "\n".join(lines)


def _feedback(feedback: Mapping[str, Any]) -> str:
    if feedback["accuracy"] is None:
        return "none yet"
    return f"{feedback['accuracy']:.2%} of {feedback['num_labelled']} answers were right"


def _over(score: Mapping[str, Any]) -> str:
    return "over" if score["value"] > score["threshold"] else ""


def _difference(each: Mapping[str, Any]) -> float:
    return abs(float(each["share"]) - (each["reference_share"] or 0.0))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
