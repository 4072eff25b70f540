"""The classes and confidences of the last answers, counted."""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_BLOCKS = 10

TopClass = tuple[int, float]
"""An image's most probable class and its probability."""


@dataclass(slots=True, eq=False)
class _Block:
    class_counts: list[int]
    confidence_counts: list[int]
    begun: float = 0.0  # when its first answer was counted
    num_items: int = 0


class AnswerWindow:
    """A sliding window that moves by a tenth of its size. It keeps ten blocks of counts.

    `confidence_counts[i]` counts from `edges[i]` up to, not including, `edges[i + 1]`. Values beyond the edges
    count in the first and the last bin.
    """

    def __init__(
        self, num_classes: int, edges: Sequence[float], num_items: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._block_items = num_items // NUM_BLOCKS
        self._inner_edges = edges[1:-1]
        self._clock = clock
        self._blocks: deque[_Block] = deque()
        self.class_counts = [0] * num_classes
        self.confidence_counts = [0] * (len(self._inner_edges) + 1)
        self.num_items = 0
        self._filling = self._new_block()

    def add(self, answers: Sequence[TopClass]) -> bool:
        """Count answers. Return whether the window has moved, as it does with every tenth of its size."""
        has_moved = False
        begin = 0
        while begin < len(answers):
            block = self._filling
            end = begin + self._block_items - block.num_items
            part = answers[begin:end]
            if not block.num_items:
                block.begun = self._clock()
            classes, confidences, edges = block.class_counts, block.confidence_counts, self._inner_edges
            for index, confidence in part:
                classes[index] += 1
                confidences[bisect_right(edges, confidence)] += 1
            block.num_items += len(part)
            begin += len(part)
            if block.num_items == self._block_items:
                self._move()
                has_moved = True
        return has_moved

    @property
    def num_filling(self) -> int:
        """Return the number of answers in the block that is not full yet."""
        return self._filling.num_items

    @property
    def seconds(self) -> float:
        """Return the age of the window's first answer."""
        return self._clock() - self._blocks[0].begun if self._blocks else 0.0

    def _move(self) -> None:
        block, self._filling = self._filling, self._new_block()
        self._blocks.append(block)
        self._sum(block, 1)
        if len(self._blocks) > NUM_BLOCKS:
            self._sum(self._blocks.popleft(), -1)

    def _sum(self, block: _Block, sign: int) -> None:
        for sums, counts in (
            (self.class_counts, block.class_counts),
            (self.confidence_counts, block.confidence_counts),
        ):
            sums[:] = [total + sign * count for total, count in zip(sums, counts, strict=True)]
        self.num_items += sign * block.num_items

    def _new_block(self) -> _Block:
        return _Block([0] * len(self.class_counts), [0] * len(self.confidence_counts))
