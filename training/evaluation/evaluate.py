"""One evaluation for any model, and the verb that applies it to the trained weights."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.artifacts import Run, Split, Variant, read_json, write_json
from training.data.dataset import load_dataset, load_split
from training.errors import RunError
from training.evaluation.metrics import (
    CalibrationBin,
    ClassFigures,
    calibration_bins,
    class_figures,
    confusion_matrix,
    expected_calibration_error,
    negative_log_likelihood,
)
from training.evaluation.plots import plot_confusion_matrix, plot_learning_curves, plot_reliability
from training.models.weights import load_graph, weights_sha256
from training.progress import progress

Model = Callable[[Tensor], Tensor]
"""Uint8 [N, C, H, W] -> float32 probabilities [N, num_classes]."""

BATCH_SIZE = 32
MOST_ONE_BY_ONE = 1000
LEAST_LOG_ODDS, MOST_LOG_ODDS, LOG_ODDS_STEP = -7.0, 14.0, 0.5


@dataclass(frozen=True)
class Report:
    """How a model answers one split."""

    split: Split
    num_samples: int
    accuracy: float
    negative_log_likelihood: float
    expected_calibration_error: float
    per_class: list[ClassFigures]
    confusion_matrix: list[list[int]]
    calibration: list[CalibrationBin]


@dataclass(frozen=True)
class Reference:
    """How a model answers the validation split: what its answers in production are compared with.

    `class_prior` is the share of each class among the answers; the histogram is of their confidence.
    """

    split: Split
    class_prior: list[float]
    histogram_edges: list[float]
    histogram_counts: list[int]


@dataclass(frozen=True)
class BatchDependence:
    """How far the probabilities answered alone are from those in a batch, at most; how many classes change."""

    batch_size: int
    num_samples: int
    max_abs_difference: float
    num_class_changes: int


@dataclass(frozen=True)
class Evaluation:
    """Everything that is measured of one variant of the weights with that sum."""

    weights_sha256: str
    report: Report
    reference: Reference
    batch_dependence: BatchDependence


def predict(model: Model, images: Tensor, batch_size: int = BATCH_SIZE) -> NDArray[np.float32]:
    """Return the probabilities, float32 [N, num_classes], of uint8 [N, C, H, W], asked for in batches of that size."""
    starts = range(0, len(images), batch_size)
    with torch.inference_mode():
        batches = [model(images[start : start + batch_size]) for start in progress(starts, "measure", "batches")]
    answers: NDArray[np.float32] = torch.cat(batches).numpy()
    return answers


def report(probabilities: NDArray[np.float32], labels: NDArray[np.int64], classes: list[str], split: Split) -> Report:
    """Return the figures of probabilities [N, num_classes] against labels [N]."""
    answers = probabilities.argmax(axis=1).astype(np.int64)
    confusion = confusion_matrix(labels, answers, len(classes))
    bins = calibration_bins(probabilities, labels)
    return Report(
        split=split,
        num_samples=len(labels),
        accuracy=float((answers == labels).mean()),
        negative_log_likelihood=negative_log_likelihood(probabilities, labels),
        expected_calibration_error=expected_calibration_error(bins),
        per_class=class_figures(confusion, classes),
        confusion_matrix=confusion.tolist(),
        calibration=bins,
    )


def reference(probabilities: NDArray[np.float32], split: Split) -> Reference:
    """Return the distribution of the answers in probabilities [N, num_classes]."""
    num_samples, num_classes = probabilities.shape
    answers = np.bincount(probabilities.argmax(axis=1), minlength=num_classes)
    edges = confidence_edges()
    # Softmax may round to a little more than 1.
    counts, _ = np.histogram(np.minimum(probabilities.max(axis=1), 1), bins=edges)
    return Reference(split, (answers / num_samples).tolist(), edges.tolist(), counts.tolist())


def confidence_edges() -> NDArray[np.float64]:
    """Return the edges of the histogram of confidences: 0, equal steps of the log-odds, 1.

    Nine in ten answers of a good model lie in [0.99, 1], where edges at equal distances see one bin. Between them is
    how certain it was. The last edge but one is 1 - 8e-7: beyond it float32 has only a dozen values left.
    """
    log_odds = np.arange(LEAST_LOG_ODDS, MOST_LOG_ODDS + LOG_ODDS_STEP, LOG_ODDS_STEP)
    return np.concatenate([[0.0], 1 / (1 + np.exp(-log_odds)), [1.0]])


def batch_dependence(model: Model, images: Tensor, batched: NDArray[np.float32]) -> BatchDependence:
    """Return how far answers one by one are from the `batched` ones of the same images, [N, num_classes]."""
    num_samples = min(len(images), MOST_ONE_BY_ONE)
    alone = predict(model, images[:num_samples], batch_size=1)
    together = batched[:num_samples]
    return BatchDependence(
        batch_size=min(BATCH_SIZE, len(images)),
        num_samples=num_samples,
        max_abs_difference=float(np.abs(alone - together).max()),
        num_class_changes=int((alone.argmax(axis=1) != together.argmax(axis=1)).sum()),
    )


def evaluate_model(model: Model, run: Run, variant: Variant = "fp32") -> Evaluation:
    """Return everything that is measured of a model on the run's images; the test split is only ever measured on.

    The variant says which weights it has.
    """
    classes = load_dataset(run).classes
    images, labels = load_split(run, "test")
    probabilities = predict(model, images)
    validation_images, _ = load_split(run, "validation")
    return Evaluation(
        weights_sha256=weights_sha256(run, variant),
        report=report(probabilities, labels.numpy(), classes, "test"),
        reference=reference(predict(model, validation_images), "validation"),
        batch_dependence=batch_dependence(model, images, probabilities),
    )


def save_evaluation(run: Run, variant: Variant, evaluation: Evaluation) -> None:
    """Leave the figures of a variant and their pictures in the run, and print the short of it."""
    found = evaluation.report
    classes = [each.name for each in found.per_class]
    plot_confusion_matrix(run.confusion_matrix(variant), found.confusion_matrix, classes)
    plot_reliability(run.reliability(variant), found.calibration, found.expected_calibration_error)
    write_json(run.evaluation(variant), evaluation)
    print(
        f"{variant}: accuracy {found.accuracy:.4f} on {found.num_samples} test images, negative log-likelihood "
        f"{found.negative_log_likelihood:.4f}, expected calibration error {found.expected_calibration_error:.4f}"
    )


def load_evaluation(run: Run, variant: Variant) -> Evaluation:
    """Return what was measured of the variant; raises RunError if it was not, or the weights changed since."""
    verbs: dict[Variant, str] = {"fp32": "evaluate", "aoti": "export --aoti"}
    verb = verbs.get(variant, "quantize")
    document = read_json(run.evaluation(variant), written_by=verb)
    if document["weights_sha256"] != weights_sha256(run, variant):
        raise RunError(f"{run.evaluation(variant)} is of other weights than {run.weights}; run the stage {verb} again")
    found = document["report"]
    found["per_class"] = [ClassFigures(**each) for each in found["per_class"]]
    found["calibration"] = [CalibrationBin(**each) for each in found["calibration"]]
    return Evaluation(
        weights_sha256=document["weights_sha256"],
        report=Report(**found),
        reference=Reference(**document["reference"]),
        batch_dependence=BatchDependence(**document["batch_dependence"]),
    )


def is_evaluated(run: Run, variant: Variant) -> bool:
    """Tell whether the variant was measured, with the weights that it has now."""
    try:
        load_evaluation(run, variant)
    except RunError:
        return False
    return True


def evaluate(run: Run) -> None:
    """Leave figures and pictures of the trained fp32 model in the run; raises RunError if it was not trained."""
    history = read_json(run.history, written_by="train")
    plot_learning_curves(run.learning_curves, history["epochs"], history["kept_epoch"])
    save_evaluation(run, "fp32", evaluate_model(load_graph(run), run))
