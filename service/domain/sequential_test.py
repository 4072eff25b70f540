"""Is the new version worse? Sequential tests that may be looked at after every request.

Each guard keeps an e-process: under the hypothesis that the new version is not worse, a non-negative supermartingale
that begins at 1, so that by Ville's inequality the chance that it ever reaches 1 / alpha is at most alpha, however
often it is looked at and whenever one stops (Ramdas, Grünwald, Vovk, Shafer: Game-theoretic statistics and safe
anytime-valid inference, Statistical Science 38, 2023). It is a likelihood ratio against a mixture of alternatives
(Robbins 1970).
"""

import math
from typing import NamedTuple

from pydantic import RootModel

# How many times as often the new version fails, under the alternatives that are mixed.
RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
# How many times as often the versions disagree as they may.
DISAGREEMENT_RATIOS = (1.5, 2.0, 4.0, 8.0, 16.0, 40.0)
ALMOST_ALL = 0.98


class Sample(NamedTuple):
    """How many were bad, of how many."""

    num_bad: int = 0
    num_all: int = 0

    def __add__(self, other: "Sample") -> "Sample":  # type: ignore[override]
        return Sample(self.num_bad + other.num_bad, self.num_all + other.num_all)

    def __sub__(self, other: "Sample") -> "Sample":
        return Sample(self.num_bad - other.num_bad, self.num_all - other.num_all)

    @property
    def rate(self) -> float:
        """Return the share of bad ones, 0 where there is none."""
        return self.num_bad / self.num_all if self.num_all else 0.0


NONE = Sample()


class Evidence(RootModel[tuple[float, ...]], frozen=True):
    """What has been seen so far: the logarithm of the likelihood ratio of each alternative."""

    root: tuple[float, ...] = (0.0,) * len(RATIOS)

    @property
    def e_value(self) -> float:
        """Return the mixture's likelihood ratio; the larger, the worse for the new version."""
        return sum(math.exp(min(log, 700.0)) for log in self.root) / len(self.root)


def compared(evidence: Evidence, new: Sample, old: Sample, tolerance: float) -> Evidence:
    """Return the evidence after another interval: is the new version's rate above `tolerance` times the old one's?

    If it is just that, each bad one is the new version's with the probability `share`: the conditional test of two
    rates, as one compares two Poisson counts (Przyborowski and Wilenski 1940). It is valid for rates of any size: the
    expectation of the ratio is a product of factors 1 + x, and the sum of those x is 0, or less for a better version.
    """
    num_bad = new.num_bad + old.num_bad
    if not num_bad or not new.num_all or not old.num_all:
        return evidence
    share = tolerance * new.num_all / (tolerance * new.num_all + old.num_all)
    logs = []
    for log, ratio in zip(evidence.root, RATIOS, strict=True):
        if_worse = ratio * share / (ratio * share + 1 - share)
        ours = new.num_bad * math.log(if_worse / share)
        theirs = old.num_bad * math.log((1 - if_worse) / (1 - share))
        logs.append(log + ours + theirs)
    return Evidence(tuple(logs))


def bounded(evidence: Evidence, new: Sample, allowed: float) -> Evidence:
    """Return the evidence after another interval: is the new version's rate above `allowed`?"""
    logs = []
    for log, ratio in zip(evidence.root, DISAGREEMENT_RATIOS, strict=True):
        # A multiple of the rate where that is one, of its complement else.
        rate = min(ratio * allowed, 1 - (1 - allowed) * (1 - ALMOST_ALL))
        bad = new.num_bad * math.log(rate / allowed)
        good = (new.num_all - new.num_bad) * math.log((1 - rate) / (1 - allowed))
        logs.append(log + bad + good)
    return Evidence(tuple(logs))
