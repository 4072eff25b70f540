"""How long a training will go on, for people who watch it."""

import time

from training.engine.history import EpochRecord, OnEpoch
from training.progress import SECONDS_BETWEEN_LINES, duration


def time_left(num_epochs: int) -> OnEpoch:
    """Return what to call after each epoch; every few seconds, it prints how long the others will take at most."""
    told = time.monotonic()

    def tell(record: EpochRecord) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN_LINES and record.epoch < num_epochs:
            told = now
            left = duration(record.seconds * (num_epochs - record.epoch))
            print(f"{record.epoch} of {num_epochs} epochs, at most about {left} left", flush=True)

    return tell
