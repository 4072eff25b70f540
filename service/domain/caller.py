"""Who asks for predictions: the owner of a key, or an address. The queue serves callers in turn."""

from dataclasses import dataclass

MOST_SHARE = 100
ANYBODY = "anybody"  # the name of all callers without a key


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One caller, equal to itself alone."""

    name: str = ANYBODY  # in logs, metrics and events; never a key
    share: float = 1.0  # of the model's time, beside the shares of the others that wait; at least 1

    def __post_init__(self) -> None:
        if not 1 <= self.share <= MOST_SHARE:
            raise ValueError(f"a share is a number from 1 to {MOST_SHARE}, not {self.share:g}")


GATEWAY = Caller("gateway")  # asks for itself: copies for shadows
