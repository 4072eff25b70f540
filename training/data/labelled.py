"""What every source of images gives: images that are not decoded yet, and their labels."""

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class LabelledImages:
    """Images by index, each with a label (index into `classes`) and a key that stays when its neighbours change."""

    description: str
    classes: list[str]
    labels: list[int]
    keys: list[str]
    load: Callable[[int], Image.Image]
