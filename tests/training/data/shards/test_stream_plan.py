"""Every position of an epoch is given once, whoever reads it, and however often it is interrupted."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.shards.plan import (
    CHUNK_SIZE,
    Part,
    Segment,
    buffered_shuffle,
    chunks,
    epoch_segment,
    interleaved,
    rest,
)

sizes = st.integers(0, 400)
few = st.integers(1, 5)


def given_in(segment: Segment, first: int, last: int) -> list[int]:
    """What all ranks are given in a range of batches."""
    positions: list[int] = []
    for rank in range(segment.num_ranks):
        ends = [0, *segment.ends[:, rank].tolist()]
        positions += interleaved(segment.orders(rank))[ends[first] : ends[last]].tolist()
    return positions


@settings(deadline=None, max_examples=60)
@given(num_samples=sizes, ranks=few, workers=few, batch_size=st.integers(2, 70), buffer=st.integers(1, 90))
def test_an_epoch_is_each_position_once(
    num_samples: int, ranks: int, workers: int, batch_size: int, buffer: int
) -> None:
    segment, done = epoch_segment(
        num_samples, [], num_ranks=ranks, num_workers=workers, batch_size=batch_size, shuffle_buffer=buffer, seed="0/0"
    )
    assert done == 0
    assert sorted(given_in(segment, 0, len(segment.ends))) == list(range(num_samples))
    shares = [sum(len(order) for order in segment.orders(rank)) for rank in range(ranks)]
    assert max(shares) - min(shares) <= 1
    per_batch = np.diff(segment.ends, axis=0, prepend=0)
    assert (per_batch.max(axis=1) - per_batch.min(axis=1) <= 1).all()
    assert (per_batch.sum(axis=1)[:-1] == batch_size).all()
    assert (per_batch.sum(axis=1) <= max(2, batch_size // 2) + batch_size).all()


@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(50, 400),
    topologies=st.lists(st.tuples(few, few, st.integers(0, 4)), min_size=1, max_size=4),
)
def test_an_interrupted_epoch_goes_on_with_what_is_left(
    num_samples: int, topologies: list[tuple[int, int, int]]
) -> None:
    parts: list[Part] = []
    seen: list[int] = []
    for ranks, workers, num_batches in topologies:
        segment, done = epoch_segment(
            num_samples, parts, num_ranks=ranks, num_workers=workers, batch_size=16, shuffle_buffer=20, seed="0/0"
        )
        last = min(done + num_batches, len(segment.ends))
        seen += given_in(segment, done, last)
        parts = [*(parts[:-1] if done else parts), Part(ranks, workers, last)]
    segment, done = epoch_segment(
        num_samples, parts, num_ranks=2, num_workers=3, batch_size=16, shuffle_buffer=20, seed="0/0"
    )
    seen += given_in(segment, done, len(segment.ends))
    assert sorted(seen) == list(range(num_samples))


@given(lengths=st.lists(st.integers(0, 3 * CHUNK_SIZE), min_size=1, max_size=4), num_given=st.integers(0, 400))
def test_the_rest_comes_in_the_order_of_the_whole(lengths: list[int], num_given: int) -> None:
    starts = np.cumsum([0, *lengths])
    orders = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=False)]
    turns = rest(orders, num_given)
    left: list[int] = []
    while any(turns):
        for worker in turns:
            if worker:
                left += worker.pop(0).tolist()
    assert left == interleaved(orders)[num_given:].tolist()


def test_a_buffer_shuffles_within_its_reach() -> None:
    order = buffered_shuffle(np.arange(500), 50, Random(0)).tolist()
    assert sorted(order) == list(range(500))
    assert order != list(range(500))
    # What is given was in the buffer: nothing is further ahead than its size.
    assert all(position < place + 50 for place, position in enumerate(order))
    assert buffered_shuffle(np.arange(9), 1, Random(0)).tolist() == list(range(9))
    assert [len(chunk) for chunk in chunks(np.arange(2 * CHUNK_SIZE + 1))] == [CHUNK_SIZE, CHUNK_SIZE, 1]
