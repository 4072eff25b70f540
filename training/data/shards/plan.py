"""Who reads which image of an epoch of shards, and when: numbers alone, the same in every process.

An epoch's shards stand in a new order; its images are the positions 0 to N - 1 in that row. Processes (ranks) and
their workers take contiguous ranges that differ by one image at most, whatever the number of shards, so each shard is
read in sequence by few. After an interruption, the images already read follow from the number of readers and of batches
they took. So another number of readers may go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from random import Random

import numpy as np
from numpy.typing import NDArray

from training.data.batches import batch_bounds

Positions = NDArray[np.int64]
CHUNK_SIZE = 32
"""Images that a worker hands over at once."""


@dataclass(frozen=True)
class Part:
    """The batches of an epoch that one set of processes took."""

    num_ranks: int
    num_workers: int
    num_batches: int


@dataclass(frozen=True)
class Segment:
    """Some positions of an epoch, in rising order, spread over ranks and workers."""

    positions: Positions
    num_ranks: int
    num_workers: int
    batch_size: int
    shuffle_buffer: int
    seed: str

    def orders(self, rank: int) -> list[Positions]:
        """Return the positions that each worker of a rank gives, in their order."""
        num_readers = self.num_ranks * self.num_workers
        mine = np.array_split(self.positions, self.num_ranks)[rank]
        orders = []
        for reader, part in enumerate(np.array_split(mine, self.num_workers), start=rank * self.num_workers):
            random = Random(f"{self.seed}/{reader}/{num_readers}")
            orders.append(buffered_shuffle(part, self.shuffle_buffer, random))
        return orders

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """How many images each rank was given when each batch is over, [num_batches, num_ranks].

        Dealt out in turn: all of a batch is given, and the ranks' shares of it differ by one image at most.
        """
        stops = np.array([stop for _, stop in batch_bounds(len(self.positions), self.batch_size)], np.int64)
        turns = np.arange(self.num_ranks)[::-1]
        return (stops[:, np.newaxis] + turns) // self.num_ranks

    def after(self, num_batches: int) -> Positions:
        """Return the positions, in rising order, that no rank was given in so many batches."""
        if not num_batches:
            return self.positions
        taken = [interleaved(self.orders(rank))[: self.ends[num_batches - 1, rank]] for rank in range(self.num_ranks)]
        return np.setdiff1d(self.positions, np.concatenate(taken), assume_unique=True)


def epoch_segment(
    num_samples: int,
    parts: Sequence[Part],
    *,
    num_ranks: int,
    num_workers: int,
    batch_size: int,
    shuffle_buffer: int,
    seed: str,
) -> tuple[Segment, int]:
    """Return what these processes take of the epoch after the parts, and how many batches of it they took already."""

    def segment(positions: Positions, ranks: int, workers: int) -> Segment:
        return Segment(positions, ranks, workers, batch_size, shuffle_buffer, seed)

    positions = np.arange(num_samples, dtype=np.int64)
    for number, part in enumerate(parts):
        current = segment(positions, part.num_ranks, part.num_workers)
        if number == len(parts) - 1 and (part.num_ranks, part.num_workers) == (num_ranks, num_workers):
            return current, part.num_batches
        positions = current.after(part.num_batches)
    return segment(positions, num_ranks, num_workers), 0


def buffered_shuffle(positions: Positions, size: int, random: Random) -> Positions:
    """Return the positions as a buffer of this size gives them, filled one by one and emptied by lot."""
    order: list[int] = []
    buffer: list[int] = []
    for position in positions.tolist():
        if len(buffer) < size:
            buffer.append(position)
            continue
        drawn = random.randrange(size)
        order.append(buffer[drawn])
        buffer[drawn] = position
    random.shuffle(buffer)
    return np.array([*order, *buffer], np.int64)


def chunks(order: Positions) -> list[Positions]:
    """Return what a worker hands over at once, in turn."""
    return [order[start : start + CHUNK_SIZE] for start in range(0, len(order), CHUNK_SIZE)]


def interleaved(orders: Sequence[Positions]) -> Positions:
    """Return the order in which a DataLoader hands over the workers' chunks: in turns, without those that are done."""
    turns = zip_longest(*(chunks(order) for order in orders))
    return np.concatenate([np.empty(0, np.int64), *(chunk for turn in turns for chunk in turn if chunk is not None)])


def rest(orders: Sequence[Positions], num_given: int) -> list[list[Positions]]:
    """Return the chunks that each worker has still to give after so many images; the one whose turn it is comes first.

    Its first chunk is what is left of one, so that the order of all images goes on unchanged.
    """
    remaining = [chunks(order) for order in orders]
    turn = 0
    while num_given and any(remaining):
        if remaining[turn]:
            first = remaining[turn][0]
            if len(first) > num_given:
                remaining[turn][0] = first[num_given:]
                break
            num_given -= len(remaining[turn].pop(0))
        turn = (turn + 1) % len(orders)
    return [*remaining[turn:], *remaining[:turn]]
