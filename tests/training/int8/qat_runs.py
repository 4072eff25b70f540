"""Runs to train on with quantization in mind."""

import shutil
from dataclasses import replace

import pytest

from training.artifacts import Run
from training.models.weights import load_card, save_card
from training.options.config import QuantizeConfig

QAT = QuantizeConfig(qat=True, qat_epochs=3, qat_learning_rate=0.01)


def copy_of(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(shutil.copytree(run.folder, tmp_path_factory.mktemp("qat") / "run"))


def with_recipe(run: Run, **changes: object) -> None:
    card = load_card(run)
    save_card(run, replace(card, train=card.train | changes))
