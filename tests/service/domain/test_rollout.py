"""The statistics of guarded rollouts, with a fake clock: what is no worse stays, what is worse goes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy.stats import beta

from service.domain.rollout import GUARDS, Counts, Progress, Rollout, RolloutSpec, explained, stepped
from service.domain.sequential_test import Sample

REQUESTS_PER_SECOND = 50
NUM_ROLLOUTS = 500


@dataclass(frozen=True)
class Rates:
    """How often a version fails, is slow, answers otherwise than the stable one, and is wrong."""

    errors: float = 0.01
    slow: float = 0.01
    disagreements: float = 0.04
    wrong: float = 0.02


def run(spec: RolloutSpec, new: Rates, old: Rates, random: np.random.Generator) -> tuple[Rollout, str, int]:
    """Return how a rollout ends, which guard broke, and how many requests the new version had."""
    rollout, progress, counts = Rollout(1, spec, "1.0"), Progress(), Counts()
    while rollout.state == "running":
        counts += second(spec.steps[rollout.step] / 100, spec, new, old, random)
        progress = progress.after(rollout, counts, 1.0)
        if (guard := progress.broken(spec)) is not None:
            return replace(rollout, state="rolled_back"), guard, counts.num_new
        if progress.is_enough(spec):
            rollout = stepped(rollout)
    return rollout, "", counts.num_new


def second(share: float, spec: RolloutSpec, new: Rates, old: Rates, random: np.random.Generator) -> Counts:
    """Return what is counted in a second."""

    def some(num_all: int, rate: float) -> Sample:
        return Sample(int(random.binomial(num_all, rate)), num_all)

    num_new = int(random.binomial(REQUESTS_PER_SECOND, share))
    num_old = REQUESTS_PER_SECOND - num_new
    labelled_new, labelled_old = num_new // 5, num_old // 5
    return Counts(
        num_new,
        some(num_new, new.errors),
        some(num_old, old.errors),
        some(num_new, new.slow),
        some(num_old, old.slow),
        some(int(num_old * spec.shadow_percent / 100), new.disagreements),
        some(labelled_new, new.wrong),
        some(labelled_old, old.wrong),
    )


def test_a_version_that_is_no_worse_is_rolled_back_no_more_often_than_stated() -> None:
    random = np.random.default_rng(1)
    spec = RolloutSpec("1.1", min_requests=100, min_seconds=20)
    ends = [run(spec, Rates(), Rates(), random) for _ in range(NUM_ROLLOUTS)]
    num_false = sum(rollout.state == "rolled_back" for rollout, _, _ in ends)
    # Clopper and Pearson's upper bound, 95 %.
    upper = float(beta.ppf(0.95, num_false + 1, NUM_ROLLOUTS - num_false))
    print(f"{num_false} of {NUM_ROLLOUTS} rolled back by mistake, at most {upper:.2%}; stated {spec.error_rate:.2%}")
    assert upper <= spec.error_rate


@pytest.mark.parametrize(
    ("worse", "guard", "power"),
    [
        (Rates(errors=0.02), "errors", 0.4),
        (Rates(errors=0.05), "errors", 0.99),
        (Rates(slow=0.06), "p99", 0.99),
        (Rates(disagreements=0.5), "agreement", 0.99),
        (Rates(wrong=0.3), "accuracy", 0.99),
    ],
)
def test_a_version_that_is_worse_is_rolled_back(worse: Rates, guard: str, power: float) -> None:
    random = np.random.default_rng(2)
    spec = RolloutSpec("1.1", min_requests=1000, min_seconds=60)
    ends = [run(spec, worse, Rates(), random) for _ in range(100)]
    broken = [broke for _, broke, _ in ends if broke]
    found = len(broken) / len(ends)
    requests = sorted(num for rollout, _, num in ends if rollout.state == "rolled_back")
    print(f"{worse}: {found:.0%} rolled back, after {requests[len(requests) // 2]} requests of its own (median)")
    assert found >= power
    assert broken.count(guard) >= 0.95 * len(broken)


def test_what_one_version_had_alone_is_weighed_when_the_other_one_had_something() -> None:
    rollout = Rollout(1, RolloutSpec("1.1"), "1.0")
    ours, both = Counts(3, Sample(3, 3)), Counts(3, Sample(3, 3), Sample(0, 9))
    alone = Progress().after(rollout, ours, 1)
    assert alone.evidence["errors"].e_value == 1
    assert alone.after(rollout, both, 1).evidence == Progress().after(rollout, both, 1).evidence


def test_evidence_does_not_depend_on_how_often_it_is_looked_at() -> None:
    rollout = Rollout(1, RolloutSpec("1.1"), "1.0")
    once = Counts(10, Sample(3, 10), Sample(1, 90), disagreements=Sample(2, 9))
    twice = Counts(20, Sample(6, 20), Sample(2, 180), disagreements=Sample(4, 18))
    in_steps = Progress().after(rollout, once, 1).after(rollout, twice, 1)
    at_once = Progress().after(rollout, twice, 2)
    for name in GUARDS:
        assert in_steps.evidence[name].root == pytest.approx(at_once.evidence[name].root)
    store = TypeAdapter(Progress)
    assert store.validate_json(store.dump_json(in_steps)) == in_steps


def test_what_broke_is_told_with_its_figures() -> None:
    spec = RolloutSpec("1.1")
    counts = Counts(40, Sample(8, 40), Sample(1, 400), disagreements=Sample(9, 20))
    assert explained("errors", spec, counts, 1234.5) == (
        "guard errors: 8 of 40 requests failed (20.00%), against 1 of 400 of the stable version (0.25%); "
        "evidence 1.23e+03, allowed 400"
    )
    assert "9 of 20 images" in explained("agreement", spec, counts, 500)
    assert "at most 5.00%" in explained("agreement", spec, counts, 500)


def test_a_rollout_goes_through_its_steps() -> None:
    rollout = Rollout(1, RolloutSpec("1.1", steps=(10, 50, 100)), "1.0")
    assert rollout.weights == {"1.0": 90, "1.1": 10}
    rollout = stepped(rollout)
    assert rollout.weights == {"1.0": 50, "1.1": 50}
    rollout = stepped(rollout)
    assert (rollout.state, rollout.weights) == ("succeeded", {"1.0": 0, "1.1": 100})
    assert stepped(Rollout(1, RolloutSpec("1.1", steps=(100,)), "1.0")).state == "succeeded"
