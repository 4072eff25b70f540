"""Training learns, repeats itself bit by bit, keeps its best epoch, and stops when its numbers are no numbers."""

from dataclasses import replace

import pytest
import torch

from tests.training.runs import NewRun
from training.artifacts import Run, read_json
from training.data.batches import batch_bounds
from training.data.dataset import load_split
from training.engine.assembly import parameter_groups
from training.engine.history import EpochRecord, best_of
from training.engine.train import train
from training.errors import NonFiniteLossError, RunError, SettingError
from training.evaluation.evaluate import predict
from training.models.resnet import build_model
from training.models.weights import load_card, load_graph
from training.options.config import Config


def test_same_seed_gives_the_same_bytes_and_another_seed_others(new_run: NewRun, config: Config) -> None:
    brief = replace(config.train, epochs=2)
    first, second, other = new_run(), new_run(), new_run()
    train(first, brief)
    train(second, brief)
    train(other, replace(brief, seed=1))
    assert first.weights.read_bytes() == second.weights.read_bytes()
    assert first.weights_card.read_bytes() == second.weights_card.read_bytes()
    assert first.weights.read_bytes() != other.weights.read_bytes()


def test_kept_weights_answer_as_their_card_says(exported: Run) -> None:
    card, history = load_card(exported), read_json(exported.history, "train")
    images, labels = load_split(exported, "validation")
    probabilities = predict(load_graph(exported), images)
    assert (probabilities.argmax(axis=1) == labels.numpy()).mean() == card.validation_accuracy
    kept = history["epochs"][card.epoch - 1]
    assert history["kept_epoch"] == card.epoch
    best = max(history["epochs"], key=lambda each: (each["validation_accuracy"], -each["validation_loss"]))
    assert kept == best
    assert kept["validation_accuracy"] == card.validation_accuracy >= 0.9


def record(accuracy: float, loss: float) -> EpochRecord:
    return EpochRecord(1, 0.1, 0, 0, validation_loss=loss, validation_accuracy=accuracy, seconds=1)


def test_best_epoch_is_by_accuracy_then_by_loss() -> None:
    history = [record(0.8, 1), record(0.9, 2), record(0.9, 1), record(0.9, 1)]
    assert best_of(history[:1]) is history[0]
    assert best_of(history[:2]) is history[1]
    assert best_of(history) is history[2], "the first among equals"
    assert best_of(history[:0]) is None


def test_non_finite_loss_stops_with_epoch_and_step(new_run: NewRun, config: Config) -> None:
    run = new_run()
    with pytest.raises(NonFiniteLossError, match=r"epoch 1/4, step \d+ of 13"):
        train(run, replace(config.train, learning_rate=1e20))
    assert not run.weights_card.exists()


def test_weights_that_the_card_does_not_describe_are_refused(new_run: NewRun, config: Config) -> None:
    run = new_run()
    with pytest.raises(RunError, match="training train"):
        load_graph(run)
    train(run, replace(config.train, epochs=1))
    run.weights.write_bytes(run.weights.read_bytes() + b"?")
    with pytest.raises(RunError, match="is not the file that"):
        load_graph(run)


def test_weights_load_without_running_what_they_pickle(exported: Run) -> None:
    state = torch.load(exported.weights, weights_only=True)
    assert all(isinstance(value, torch.Tensor) and value.is_contiguous() for value in state.values())


def test_only_kernels_and_matrices_decay() -> None:
    network = build_model("resnet20", num_classes=10, channels=3)
    decayed, free = parameter_groups(network, 0.5)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.5, 0.0)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    free_names = {names[id(parameter)] for parameter in free["params"]}  # type: ignore[attr-defined]
    assert free_names == {
        name for name in names.values() if "bn" in name or name.endswith("bias") or name == "stem.1.weight"
    }


@pytest.mark.parametrize(
    ("num_images", "batch_size", "bounds"),
    [
        (6, 3, [(0, 3), (3, 6)]),
        (5, 3, [(0, 3), (3, 5)]),
        (7, 3, [(0, 3), (3, 7)]),
        (12, 8, [(0, 8), (8, 12)]),
        (11, 8, [(0, 11)]),
        (2, 64, [(0, 2)]),
        (0, 8, []),
    ],
)
def test_a_last_batch_of_less_than_half_the_size_joins_its_predecessor(
    num_images: int, batch_size: int, bounds: list[tuple[int, int]]
) -> None:
    assert batch_bounds(num_images, batch_size) == bounds


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("epochs", 0, "--epochs is 0; allowed is 1 or more"),
        ("batch_size", 1, "--batch-size is 1; allowed is 2 or more"),
        ("learning_rate", float("nan"), "--learning-rate is nan; allowed is more than 0"),
        ("momentum", 1.0, "--momentum is 1.0; allowed is more than 0 and less than 1"),
    ],
)
def test_options_out_of_range_are_named(config: Config, option: str, value: float, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace(config.train, **{option: value})  # type: ignore[arg-type]
