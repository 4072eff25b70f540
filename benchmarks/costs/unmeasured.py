"""The gateway, whose metrics a signal switches off and on, to measure what they cost.

`python -m benchmarks.costs.unmeasured serve` is the same program. The signal OFF stops all counting, timing and
setting; ON starts it again. One process with one set of workers serves throughout: two that are started side by side
differ by more than what is measured here. The product has no such setting, since nobody should want it.
"""

import signal
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from service.__main__ import main
from service.instruments import QuickCounter, QuickHistogram

OFF, ON = signal.SIGUSR1, signal.SIGUSR2
METHODS: Mapping[type, tuple[str, ...]] = {
    Counter: ("inc",),
    Gauge: ("inc", "dec", "set"),
    Histogram: ("observe",),
    QuickCounter: ("inc",),
    QuickHistogram: ("observe",),
}


def nothing(self: Any, *_: Any, **__: Any) -> None:
    """Take no notice."""


def switchable() -> None:
    """Obey the signals from now on."""
    originals = {(kind, name): vars(kind)[name] for kind, names in METHODS.items() for name in names}

    def switch(signal_number: int, _: object) -> None:
        for (kind, name), original in originals.items():
            setattr(kind, name, original if signal_number == ON else nothing)

    for each in (OFF, ON):
        signal.signal(each, switch)


if __name__ == "__main__":
    switchable()
    main()
