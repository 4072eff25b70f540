"""Augmentation does what its options say, to each image on its own, and only where training asks for it."""

import pytest
import torch
from torch import Generator

import training.data.batches
import training.engine.train
from tests.training.runs import NewRun
from training.data.augment import random_affine, warp
from training.options.config import AugmentConfig, Config


def images(num_images: int = 4, height: int = 8, width: int = 12) -> torch.Tensor:
    return torch.randint(
        0, 256, (num_images, 1, height, width), dtype=torch.uint8, generator=Generator().manual_seed(1)
    )


def augment(images: torch.Tensor, config: AugmentConfig, generator: Generator) -> torch.Tensor:
    return warp(images, random_affine(len(images), images.shape[2:], config, generator))


def test_nothing_allowed_changes_nothing() -> None:
    out = augment(images(), AugmentConfig(), Generator().manual_seed(0))
    torch.testing.assert_close(out, images().float(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        AugmentConfig(rotation_degrees=20),
        AugmentConfig(shear_degrees=20),
        AugmentConfig(translation=0.2),
        AugmentConfig(scaling=0.3),
    ],
)
def test_each_option_moves_images_differently_and_repeatably(config: AugmentConfig) -> None:
    same = images(1).expand(4, 1, 8, 12)
    out = augment(same, config, Generator().manual_seed(0))
    assert out.shape == same.shape
    assert out.dtype == torch.float32
    assert len({tuple(image.flatten().tolist()) for image in out}) == 4
    assert torch.equal(out, augment(same, config, Generator().manual_seed(0)))
    assert out.min() >= 0
    assert out.max() <= 255


def test_flip_mirrors_about_half() -> None:
    same = images(1).expand(200, 1, 8, 12)
    out = augment(same, AugmentConfig(flip=True), Generator().manual_seed(0))
    mirrored = [torch.allclose(image, same[0].float().flip(-1), atol=1e-3) for image in out]
    upright = [torch.allclose(image, same[0].float(), atol=1e-3) for image in out]
    assert 70 < sum(mirrored) < 130
    assert sum(mirrored) + sum(upright) == 200


def test_rotation_is_a_rotation_where_height_is_not_width() -> None:
    """A disc stays a disc, whatever the aspect of the image."""
    rows, columns = torch.meshgrid(torch.arange(20.0), torch.arange(60.0), indexing="ij")
    disc = (255.0 * (((rows - 9.5) ** 2 + (columns - 29.5) ** 2) < 49)).reshape(1, 1, 20, 60)
    out = augment(disc.expand(8, 1, 20, 60), AugmentConfig(rotation_degrees=90), Generator().manual_seed(0))
    assert float((out - disc).abs().mean()) < 3


def test_only_training_images_are_augmented(new_run: NewRun, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0

    def counting(batch: torch.Tensor, *_: object) -> torch.Tensor:
        nonlocal seen
        seen += len(batch)
        return batch.float()

    monkeypatch.setattr(training.data.batches, "warp", counting)
    training.engine.train.train(new_run(), config.train)
    assert seen == 210 * config.train.epochs
