"""How far a stage is and how long the rest will take: a bar on a terminal, elsewhere a line every few seconds."""

import sys
import time
from collections.abc import Collection, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 5.0
SECONDS_BEFORE_BAR = 0.5  # shorter work needs none


def progress(items: Collection[Item], title: str, unit: str) -> Iterator[Item]:
    """Give the items one by one, and show how many are done."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=title, unit=unit, leave=False, delay=SECONDS_BEFORE_BAR)
        return
    start = told = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN_LINES and number < len(items):
            told = now
            left = (now - start) / number * (len(items) - number)
            print(f"{title}: {number} of {len(items)} {unit}, about {duration(left)} left", flush=True)


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
