"""The gateway with its metrics off, to measure what they cost: `python -m benchmarks.unmeasured serve`.

The same program; only that nothing is counted, timed or set. There is no such setting, since nobody should want it.
"""

from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from service.__main__ import main
from service.instruments import QuickCounter, QuickHistogram


def nothing(self: Any, *_: Any, **__: Any) -> None:
    """Take no notice."""


if __name__ == "__main__":
    for kind, names in (
        (Counter, ("inc",)),
        (Gauge, ("inc", "dec", "set")),
        (Histogram, ("observe",)),
        (QuickCounter, ("inc",)),
        (QuickHistogram, ("observe",)),
    ):
        for name in names:
            setattr(kind, name, nothing)
    main()
