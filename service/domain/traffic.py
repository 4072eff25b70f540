"""How a model's requests are divided among its versions: weights and sticky keys.

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
from typing import Literal, Self

NUM_SLOTS = 10_000
SLOTS_PER_PERCENT = NUM_SLOTS // 100
STICKY_HEADER = "x-routing-key"
# Requests without a key draw from a shuffled deck with one card for each percent. So nobody can predict the version,
# yet a share of 5 % gets five of every hundred requests.
NUM_CARDS = 100

Role = Literal["primary", "canary"]  # shadow traffic is counted apart, in torchgate_shadow_*
Run = tuple[int, int]  # slots from the first up to, not including, the second


class TrafficInvalid(ValueError):
    """The weights or shares are wrong; the message says what is allowed."""


@dataclass(frozen=True)
class Policy:
    """One model's division of traffic; never changed, only replaced."""

    owned: Mapping[str, tuple[Run, ...]]  # version -> its slots, in the order in which it got them
    sticky_header: str | None = STICKY_HEADER  # lower case; None switches sticky routing off
    shadows: Mapping[str, float] = field(default_factory=dict)  # version -> percent of requests it also gets

    @classmethod
    def all_to(cls, version: str) -> Self:
        """Return the policy that gives one version all the traffic."""
        return cls({version: ((0, NUM_SLOTS),)})

    @cached_property
    def weights(self) -> dict[str, float]:
        """Return the percentage of each version that has any."""
        num_slots = {version: sum(end - start for start, end in runs) for version, runs in self.owned.items()}
        return {version: num / SLOTS_PER_PERCENT for version, num in num_slots.items()}

    @cached_property
    def sole(self) -> str | None:
        """Return the version that has all the traffic, None if several share it."""
        return next(iter(self.owned)) if len(self.owned) == 1 else None

    def reweighed(self, weights: Mapping[str, float]) -> "Policy":
        """Return the policy with these weights, in percent, that moves the fewest slots.

        Raises:
            TrafficInvalid: a weight is negative or finer than 0.01 %, or they do not sum to 100.
        """
        wanted = {version: num for version, weight in weights.items() if (num := _num_slots(version, weight))}
        if (total := sum(wanted.values())) != NUM_SLOTS:
            raise TrafficInvalid(f"weights sum to {total / SLOTS_PER_PERCENT:g}, they must sum to 100")
        owned = {version: _slots(runs) for version, runs in self.owned.items()}
        divided: dict[str, tuple[Run, ...]] = {}
        freed: list[int] = []
        for version, slots in owned.items():
            # A version gives up first the slots that it got last, so that a step back undoes the step.
            freed += _slots(reversed(_runs(slots[wanted.get(version, 0) :])))
        for version, num_wanted in wanted.items():
            kept = owned.get(version, [])[:num_wanted]
            num_more = num_wanted - len(kept)
            divided[version] = _runs([*kept, *freed[:num_more]])
            freed = freed[num_more:]
        return Policy(divided, self.sticky_header, self.shadows)

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


def check_share(version: str, percent: float) -> None:
    """Raise TrafficInvalid unless `percent` is a share of requests."""
    if not 0 < percent <= 100:
        raise TrafficInvalid(f"the share of {version} is {percent:g}, it must be above 0 and at most 100 percent")


def slot_of_key(model: str, key: bytes) -> int:
    """Return the slot of a routing key: always the same one, in every process."""
    digest = blake2b(key, digest_size=8, key=blake2b(model.encode(), digest_size=16).digest()).digest()
    return int.from_bytes(digest) % NUM_SLOTS


class WeightedSplitter:
    """Gives slots to requests without a key: evenly over each hundred, in an unpredictable order."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - a division of traffic is no secret
        self._cards: list[int] = []

    def draw(self) -> int:
        """Return the slot of the next request."""
        if not self._cards:
            self._cards = list(range(NUM_CARDS))
            self._random.shuffle(self._cards)
        return self._cards.pop() * (NUM_SLOTS // NUM_CARDS) + int(self._random.random() * (NUM_SLOTS // NUM_CARDS))


def _num_slots(version: str, weight: float) -> int:
    slots = round(weight * SLOTS_PER_PERCENT) if math.isfinite(weight) else -1
    if slots < 0 or abs(slots - weight * SLOTS_PER_PERCENT) > 1e-6:
        raise TrafficInvalid(f"the weight of {version} is {weight:g}, it must be 0 or more, in steps of 0.01 percent")
    return slots


def _slots(runs: Iterable[Run]) -> list[int]:
    return [slot for start, end in runs for slot in range(start, end)]


def _runs(slots: Iterable[int]) -> tuple[Run, ...]:
    """Return slots as runs, in their order."""
    runs: list[Run] = []
    for slot in slots:
        if runs and runs[-1][1] == slot:
            runs[-1] = (runs[-1][0], slot + 1)
        else:
            runs.append((slot, slot + 1))
    return tuple(runs)
