"""The project's own handler, made to raise when a marked item is in its batch: a fault that it did not foresee."""

from collections.abc import Sequence
from typing import Any

from image_classifier import ImageClassifier

MARK = b"poison"


class PoisonedHandler(ImageClassifier):
    """Serves as ever, but one item brings down the whole batch that it is in."""

    def predict(self, items: Sequence[Any], *args: Any, **options: Any) -> Any:
        """Answer the items, unless one is marked."""
        if any(MARK in item for item in items):
            raise RuntimeError("an item that the handler did not foresee")
        return super().predict(items, *args, **options)
