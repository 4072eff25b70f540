"""Sets of defaults. A preset is a function from the data (or none, for the preset's own) to a config."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from training.errors import SettingError
from training.options.config import BUILT_IN, AugmentConfig, Config, DataConfig, PresetName, TrainConfig


def digits(data: str | None) -> Config:
    """Return what suits small grey images such as handwritten digits; five thousand of those are built in."""
    data = data or "digits"
    return Config(
        preset="digits",
        name=model_name(data),
        data=DataConfig(data=data, channels=1, height=28, width=28),
        train=TrainConfig(
            architecture="resnet20",
            epochs=8,
            batch_size=32,
            schedule="one-cycle",
            warmup=0.3,
            ema_decay=0.98,
            augment=AugmentConfig(rotation_degrees=10, shear_degrees=6, translation=0.08, scaling=0.1),
        ),
    )


def digits_long(data: str | None) -> Config:
    """Return what takes three times as long as `digits` and makes fewer errors."""
    augment = AugmentConfig(rotation_degrees=15, shear_degrees=12, translation=0.1, scaling=0.15)
    train = TrainConfig(architecture="resnet20", epochs=24, augment=augment)
    return replace(digits(data), preset="digits-long", train=train)


def synthetic(data: str | None) -> Config:
    """Return the smallest thing that goes the whole way in seconds: for tests."""
    data = data or "synthetic"
    return Config(
        preset="synthetic",
        name=model_name(data),
        data=DataConfig(data=data, channels=1, height=12, width=12),
        train=TrainConfig(
            architecture="resnet20",
            epochs=4,
            batch_size=16,
            learning_rate=0.02,
            augment=AugmentConfig(translation=0.05),
        ),
    )


def images(data: str | None) -> Config:
    """Return what suits photographs: RGB, 224 x 224, resnet18."""
    if data is None:
        raise SettingError("the preset images learns from your own images: give their folder with --data")
    return Config(
        preset="images",
        name=model_name(data),
        data=DataConfig(data=data, channels=3, height=224, width=224),
        train=TrainConfig(
            architecture="resnet18",
            epochs=30,
            batch_size=32,
            learning_rate=0.05,
            augment=AugmentConfig(rotation_degrees=10, translation=0.1, scaling=0.2, flip=True),
        ),
    )


PRESETS: dict[PresetName, Callable[[str | None], Config]] = {
    "digits": digits,
    "digits-long": digits_long,
    "synthetic": synthetic,
    "images": images,
}


def build_config(preset: str | None, data: str | None) -> Config:
    """Return the preset's config for this data; your own folder without a preset gets images, else digits.

    Raises SettingError for a preset that there is not.
    """
    if preset is None:
        # What is built in has a preset of its own name.
        preset = "digits" if data is None else data if data in BUILT_IN else "images"
    for name in get_args(PresetName):
        if name == preset:
            return PRESETS[name](data)
    raise SettingError(f"--preset is {preset!r}; allowed is one of {', '.join(PRESETS)}")


def model_name(data: str) -> str:
    """Return the name that a model learnt from this data gets by default: its folder's, as requests may spell one."""
    if data in BUILT_IN:
        return data
    folder = Path(data).resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._") or "model"
