"""contract.json: everything that serving needs to know of a model, inside its archive."""

import base64
import io
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from training.artifacts import Run, Variant, read_json
from training.data.dataset import load_dataset, load_split
from training.errors import RunError, SettingError
from training.evaluation.evaluate import BatchDependence, load_evaluation
from training.export.export import load_graph_card
from training.export.graph_file import load_compiled
from training.handler_code import handler_module
from training.models.weights import load_card, weights_sha256
from training.options.config import ArchiveConfig

SCHEMA_VERSION = 1
NUM_SELF_CHECKS = 4
# Of more classes, the confusion matrix stays in the run: a thousand classes have a million cells.
MOST_CLASSES_OF_MATRIX = 100
# Another processor sums in another order: more than the parity on one machine, less than anything that matters.
SELF_CHECK_TOLERANCE = 1e-4
# A processor without VNNI runs int8 through another library, whose rounding moved a probability of the thousand test
# digits by up to 0.009.
STATIC_SELF_CHECK_TOLERANCE = 0.03


def version_of(release: str, variant: Variant) -> str:
    """Return the version under which a variant is served: 1.0 for fp32, 1.0-int8-dynamic for another."""
    return release if variant == "fp32" else f"{release}-{variant}"


def build_contract(
    run: Run, variant: Variant, *, model: str, release: str, archive: ArchiveConfig | None = None
) -> dict[str, Any]:
    """Return the contract of one variant, with the limits of images that `archive` asks for.

    Raises RunError if the run was not exported, or its graph was made of other weights than the run has now.
    """
    weights, graph = load_card(run), load_graph_card(run, variant)
    digest = weights_sha256(run, variant)
    if graph.weights_sha256 != digest:
        raise RunError(f"{run.graph(variant)} was made of other weights than {run.weights}; run the stage export again")
    dataset, evaluation = load_dataset(run), load_evaluation(run, variant)
    report, reference = asdict(evaluation.report), evaluation.reference
    if len(report["confusion_matrix"]) > MOST_CLASSES_OF_MATRIX:
        del report["confusion_matrix"]
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "release": release,
        "variant": variant,
        "version": version_of(release, variant),
        "precision": "fp32" if variant == "aoti" else variant,
        "compile": graph.compile,
        **({} if graph.compiled_for is None else {"compiled_for": graph.compiled_for}),
        "architecture": weights.architecture,
        "input": {"channels": dataset.channels, "height": dataset.height, "width": dataset.width},
        "preprocessing": asdict(dataset.preprocessing),
        "images": image_limits(archive or ArchiveConfig()),
        "classes": weights.classes,
        "evaluation": {
            **{key: value for key, value in report.items() if key != "per_class"},
            "per_class": [
                {
                    "class": each.name,
                    "precision": each.precision,
                    "recall": each.recall,
                    "num_samples": each.num_samples,
                }
                for each in evaluation.report.per_class
            ],
            "batch_dependence": asdict(evaluation.batch_dependence),
        },
        "reference": {
            "split": reference.split,
            "class_prior": reference.class_prior,
            "confidence_histogram": {"edges": reference.histogram_edges, "counts": reference.histogram_counts},
        },
        "training": {
            "run": run.id,
            "preset": read_json(run.config, written_by="prepare")["preset"],
            "dataset": weights.dataset,
            "seed": weights.seed,
            "torch_version": weights.torch_version,
        },
        "weights_sha256": digest,
        "parity": asdict(graph.parity),
        "optimize": asdict(graph.optimize, dict_factory=_without_nulls),
        "self_check": {
            "tolerance": self_check_tolerance(variant, evaluation.batch_dependence),
            "cases": self_check_cases(run, variant),
        },
    }


def image_limits(config: ArchiveConfig) -> dict[str, Any]:
    """Return which images are decoded when served; raises SettingError for what no handler could keep to."""
    limits = handler_module("image_limits")
    known, most = limits.DEFAULT_LIMITS["formats"], limits.MOST_PIXELS
    pixels, formats = config.max_image_pixels, [name.upper() for name in config.image_formats]
    if pixels is not None and not 1 <= pixels <= most:
        raise SettingError(f"--max-image-pixels is {pixels}; allowed is 1 to {most}")
    if unknown := [name for name in formats if name not in known]:
        raise SettingError(f"--image-formats has {', '.join(unknown)}; allowed are {', '.join(known)}")
    return {"max_pixels": pixels or limits.DEFAULT_LIMITS["max_pixels"], "formats": formats or known}


def self_check_tolerance(variant: Variant, measured: BatchDependence) -> float:
    """Return how far a served probability may be from the contract's.

    Dynamic int8 answers depend on the batch: twice the largest such difference measured is allowed.
    """
    match variant:
        case "fp32" | "aoti":
            return SELF_CHECK_TOLERANCE
        case "int8-dynamic":
            return max(SELF_CHECK_TOLERANCE, 2 * measured.max_abs_difference)
        case "int8-static" | "int8-qat":
            return STATIC_SELF_CHECK_TOLERANCE


def self_check_cases(run: Run, variant: Variant) -> list[dict[str, Any]]:
    """Return test images of different classes, as PNG, with the probabilities that the graph gives each one alone."""
    images, labels = load_split(run, "test")
    graph = load_compiled(run.graph(variant))
    classes = np.unique(labels.numpy())[:NUM_SELF_CHECKS].tolist()
    cases = []
    for label in classes:
        index = int((labels == label).nonzero()[0])
        with torch.inference_mode():
            probabilities = graph(images[index : index + 1])[0]
        encoded = base64.b64encode(encode_png(images[index].numpy())).decode()
        cases.append({"image_b64": encoded, "probabilities": probabilities.tolist()})
    return cases


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return uint8 [C, H, W], C of 1 or 3, as a PNG file that decodes to the same pixels."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _without_nulls(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # TorchServe leaves them out when it passes on what the handler says of itself.
    return {key: value for key, value in pairs if value is not None}
