"""How a model's requests are divided among its versions: weights, sticky keys, and who has to move when they change.

The space of requests is cut into slots of a hundredth of a percent. Each version owns some of them; a change of
weights moves as few slots as possible. So a caller with a routing key changes version only if its slot moves. The slot
of a key depends on the key and the model's name alone.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, Self

NUM_SLOTS = 10_000
SLOTS_PER_PERCENT = NUM_SLOTS // 100
STICKY_HEADER = "x-routing-key"
# Requests without a key are dealt from a shuffled deck with one card for each percent: unpredictable, and yet a share
# of 5 % gets five of every hundred requests.
NUM_CARDS = 100

Role = Literal["primary", "canary"]  # shadow traffic is counted apart, in torchgate_shadow_*
Run = tuple[int, int]  # slots from the first up to, not including, the second


class TrafficInvalid(ValueError):
    """The weights or shares are not what they must be; the message says what is wrong and what is allowed."""


@dataclass(frozen=True)
class Policy:
    """One model's division of traffic; never changed, only followed by another."""

    owned: Mapping[str, tuple[Run, ...]]  # version -> its slots, those that it got last come last
    sticky_header: str | None = STICKY_HEADER  # lower case; None deals every request anew
    shadows: Mapping[str, float] = field(default_factory=dict)  # version -> percent of requests it also gets

    @classmethod
    def all_to(cls, version: str) -> Self:
        """Return the policy that gives everything to one version."""
        return cls({version: ((0, NUM_SLOTS),)})

    @cached_property
    def weights(self) -> dict[str, float]:
        """Return the percentage of each version that has any."""
        return {version: _num_slots(runs) / SLOTS_PER_PERCENT for version, runs in self.owned.items()}

    @cached_property
    def sole(self) -> str | None:
        """Return the version that has all the traffic, None if several share it."""
        return next(iter(self.owned)) if len(self.owned) == 1 else None

    def reweighed(self, weights: Mapping[str, float]) -> "Policy":
        """Return the policy with these weights, in percent, that moves the fewest slots.

        Raises:
            TrafficInvalid: a weight is negative or finer than 0.01 %, or they do not sum to 100.
        """
        wanted = {version: slots for version, weight in weights.items() if (slots := _slots_of(version, weight))}
        if (total := sum(wanted.values())) != NUM_SLOTS:
            raise TrafficInvalid(f"weights sum to {total / SLOTS_PER_PERCENT:g}, they must sum to 100")
        kept: dict[str, tuple[Run, ...]] = {}
        freed: list[Run] = []
        for version, runs in self.owned.items():
            stays, goes = _cut(runs, wanted.get(version, 0))
            freed += goes
            if stays:
                kept[version] = stays
        for version, num_wanted in wanted.items():
            taken, freed = _take(freed, num_wanted - _num_slots(kept.get(version, ())))
            if taken:
                kept[version] = _joined((*kept.get(version, ()), *taken))
        return Policy({version: kept[version] for version in wanted}, self.sticky_header, self.shadows)

    @cached_property
    def sticky_key(self) -> bytes | None:
        """Return the name of the header that holds a request's routing key, as HTTP has it."""
        return None if self.sticky_header is None else self.sticky_header.encode()

    @cached_property
    def table(self) -> tuple[str, ...]:
        """Return the version of every slot."""
        table = [""] * NUM_SLOTS
        for version, runs in self.owned.items():
            for start, end in runs:
                table[start:end] = [version] * (end - start)
        return tuple(table)

    def document(self) -> dict[str, Any]:
        """Return the policy as JSON can hold it."""
        owned = {version: [list(run) for run in runs] for version, runs in self.owned.items()}
        return {"owned": owned, "sticky_header": self.sticky_header, "shadows": dict(self.shadows)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the policy that a document holds."""
        owned = {version: tuple((start, end) for start, end in runs) for version, runs in document["owned"].items()}
        return cls(owned, document["sticky_header"], document["shadows"])


def check_share(version: str, percent: float) -> None:
    """Raise TrafficInvalid unless `percent` is a share of requests."""
    if not 0 < percent <= 100:
        raise TrafficInvalid(f"the share of {version} is {percent:g}, it must be above 0 and at most 100 percent")


def slot_of_key(model: str, key: bytes) -> int:
    """Return the slot of a routing key, the same in every process and at every time."""
    digest = blake2b(key, digest_size=8, key=blake2b(model.encode(), digest_size=16).digest()).digest()
    return int.from_bytes(digest) % NUM_SLOTS


class WeightedSplitter:
    """Deals slots to requests without a key: evenly over each hundred, in an order that nobody can foresee."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - a division of traffic is no secret
        self._cards: list[int] = []

    def draw(self) -> int:
        """Return the slot of the next request."""
        if not self._cards:
            self._cards = list(range(NUM_CARDS))
            self._random.shuffle(self._cards)
        return self._cards.pop() * (NUM_SLOTS // NUM_CARDS) + int(self._random.random() * (NUM_SLOTS // NUM_CARDS))


def _slots_of(version: str, weight: float) -> int:
    slots = round(weight * SLOTS_PER_PERCENT) if math.isfinite(weight) else -1
    if slots < 0 or abs(slots - weight * SLOTS_PER_PERCENT) > 1e-6:
        raise TrafficInvalid(f"the weight of {version} is {weight:g}, it must be 0 or more, in steps of 0.01 percent")
    return slots


def _num_slots(runs: Iterable[Run]) -> int:
    return sum(end - start for start, end in runs)


def _cut(runs: tuple[Run, ...], num_kept: int) -> tuple[tuple[Run, ...], list[Run]]:
    """Return the runs that stay, `num_kept` slots at most, and those that go: the ones that came last, first."""
    stays = list(runs)
    goes: list[Run] = []
    too_many = _num_slots(runs) - num_kept
    while too_many > 0:
        start, end = stays.pop()
        middle = max(start, end - too_many)
        goes.append((middle, end))
        too_many -= end - middle
        if middle > start:
            stays.append((start, middle))
    return tuple(stays), goes


def _take(runs: list[Run], num_slots: int) -> tuple[list[Run], list[Run]]:
    """Return `num_slots` slots of `runs`, none if that is negative, and what is left of them."""
    left = list(reversed(runs))
    taken: list[Run] = []
    while num_slots > 0:
        start, end = left.pop()
        middle = min(end, start + num_slots)
        taken.append((start, middle))
        num_slots -= middle - start
        if middle < end:
            left.append((middle, end))
    return taken, list(reversed(left))


def _joined(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs in their order, neighbours that follow each other as one."""
    joined: list[Run] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)
