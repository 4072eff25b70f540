"""Work in steps of a few milliseconds, with turns of the event loop between them."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields after each step, and returns the result

WINDOW_BYTES = 1024 * 1024  # at most so much is searched or decoded in a step


def at_once(steps: Steps[T]) -> T:
    """Take all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def find(body: bytes, wanted: bytes, start: int) -> Steps[int]:
    """Return the first place of `wanted` from `start` on, -1 if there is none."""
    while start < len(body):
        found = body.find(wanted, start, start + WINDOW_BYTES + len(wanted) - 1)
        if found >= 0:
            return found
        start += WINDOW_BYTES
        yield
    return -1


class Turns:
    """Takes the steps of all large bodies: one step in each turn of the event loop, each body in turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], bool]] = deque()

    def add(self, take_step: Callable[[], bool]) -> None:
        """Call `take_step` until it returns that nothing is left to do; at once if no other body waits."""
        if not self._waiting and not take_step():
            return
        self._waiting.append(take_step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._take_step)

    def _take_step(self) -> None:
        take_step = self._waiting[0]
        has_more = take_step()
        self._waiting.popleft()
        if has_more:
            self._waiting.append(take_step)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take_step)
