"""Quantization-aware training: what it may be asked for, and that it follows the recipe of the training."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.training.int8.qat_runs import QAT, copy_of, with_recipe
from training.__main__ import main
from training.artifacts import VARIANTS, Run
from training.errors import NonFiniteLossError, SettingError
from training.int8.qat import train_qat
from training.models.weights import load_qat_card
from training.options.config import Config, LoaderConfig, QuantizeConfig, config_from
from training.options.verbs import QuantizeOptions
from training.tracking.record import load_record


def test_pages_are_locked_for_a_gpu_alone(exported: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a training on a GPU was given does not stop this one, which is on the CPU."""
    run = copy_of(exported, tmp_path_factory)
    with_recipe(run, loader=asdict(LoaderConfig(workers=1, pin_memory=True)))
    train_qat(run, replace(QAT, qat_epochs=1))


@pytest.mark.parametrize(("num_batches", "least"), [(1, 3), (2, 2)])
def test_too_few_steps_are_refused(
    exported: Run, tmp_path_factory: pytest.TempPathFactory, num_batches: int, least: int
) -> None:
    run = copy_of(exported, tmp_path_factory)
    with_recipe(run, batch_size=210 // num_batches)
    with pytest.raises(SettingError, match=f"--qat-epochs is 1, {num_batches} steps .* allowed is {least} or more"):
        train_qat(run, replace(QAT, qat_epochs=1))
    train_qat(run, replace(QAT, qat_epochs=least))
    assert load_qat_card(run).epoch == least


def test_divergence_is_named(exported: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = copy_of(exported, tmp_path_factory)
    with pytest.raises(NonFiniteLossError, match="--qat-learning-rate"):
        train_qat(run, replace(QAT, qat_learning_rate=1e20))
    assert not run.qat.weights_card.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qat": True, "qat_epochs": 0}, "--qat-epochs is 0; allowed is 1 or more"),
        ({"qat": True, "qat_learning_rate": -1.0}, "--qat-learning-rate is -1.0; allowed is more than 0"),
        ({"qat_epochs": 9}, "--qat-epochs goes with --qat"),
        ({"qat_epochs": 3}, "--qat-epochs goes with --qat"),  # its default, too, if it is asked for
        ({"qat_learning_rate": 0.5}, "--qat-learning-rate goes with --qat"),
    ],
)
def test_options_that_are_not_allowed_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        QuantizeConfig(**options)  # type: ignore[arg-type]


def test_the_stage_remembers_what_it_was_asked_for(
    exported: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(exported, tmp_path_factory)

    def stage(*args: str) -> QuantizeConfig:
        monkeypatch.setattr(sys, "argv", ["training", "quantize", "--run", str(run.folder), *args])
        assert main() == 0
        return config_from(json.loads(run.config.read_text())).quantize

    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    asked = stage("--qat", "--qat-epochs", "1", "--qat-learning-rate", "0.02")
    assert asked == QuantizeConfig(qat=True, qat_epochs=1, qat_learning_rate=0.02)
    assert load_qat_card(run).quantize == vars(asked)
    assert stage("--no-qat") == QuantizeConfig()
    assert run.variants == VARIANTS


def test_it_is_recorded_and_followed_as_any_training(
    exported: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(exported, tmp_path_factory)
    asked = ["--qat", "--qat-epochs", "1", "--tracking", "tensorboard"]
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr(sys, "argv", ["training", "quantize", "--run", str(run.folder), *asked])
    assert main() == 0
    record = load_record(run.qat)
    assert (record["status"], record["kept_epoch"], len(record["epochs"])) == ("finished", 1, 1)
    assert list(run.qat.tensorboard.iterdir())
    assert run.qat.validation_confusion_matrix.exists()


def test_it_clips_smooths_and_accumulates_as_the_training_did(
    exported: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = set()
    for changes in ({}, {"clip_norm": 0.01}, {"label_smoothing": 0.2}, {"accumulation": 2}):
        run = copy_of(exported, tmp_path_factory)
        with_recipe(run, **changes)
        train_qat(run, replace(QAT, qat_epochs=1))
        found.add(run.qat.weights.read_bytes())
    assert len(found) == 4


def test_resuming_goes_with_qat() -> None:
    with pytest.raises(SettingError, match="--resume goes with --qat"):
        QuantizeOptions(Path("run"), QuantizeConfig(), resume=True)


def test_runs_of_an_older_release_have_no_such_option(config: Config, exported: Run) -> None:
    document = json.loads(exported.config.read_text())
    del document["quantize"]
    assert config_from(document) == config
