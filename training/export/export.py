"""The verb that makes the files that are served, and refuses those that do not answer like the model."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from training.artifacts import ON_REQUEST, Run, Variant, read_json, sha256, write_bytes, write_json
from training.data.dataset import load_split
from training.errors import ParityError, RunError
from training.evaluation.evaluate import evaluate_model, save_evaluation
from training.export.aoti import check_compiler, compiled_for, make_package
from training.export.compile import check_compile, compile_graph
from training.export.fastest_form import Optimize, as_served, find_fastest, read_optimize
from training.export.graph_file import load_compiled
from training.export.onnx_file import check_packages, export_onnx
from training.export.variants_table import compare
from training.int8.quantize import load_variant
from training.models.weights import load_card, weights_sha256
from training.options.config import Architecture, Compile, ExportConfig

TOLERANCE = 1e-5
BATCH_SIZES = (1, 2, 7, 32)
# TorchScript profiles its first call and runs optimised code from the second: both must hold.
NUM_CALLS = 2


@dataclass(frozen=True)
class Parity:
    """The largest difference between a probability of the graph and of the eager model, and what was allowed."""

    tolerance: float
    max_abs_difference: float
    batch_sizes: list[int]


@dataclass(frozen=True)
class GraphCard:
    """The sidecar of an exported graph."""

    variant: Variant
    compile: Compile | Literal["aoti"]
    parity: Parity
    size_bytes: int
    sha256: str
    weights_sha256: str
    torch_version: str
    optimize: Optimize
    compiled_for: dict[str, str] | None = None
    """The kind of processor, of what is machine code."""


def check_parity(graph: Any, model: nn.Module, images: Tensor) -> Parity:
    """Return how close the graph is to the model on batches of several sizes, taken in turn from images [N, C, H, W].

    Raises ParityError if a probability deviates by more than the tolerance, or is not a number.
    """
    worst = 0.0
    with torch.inference_mode():
        for size in BATCH_SIZES:
            # From the end, so that trace meets other images than it recorded; a small split begins anew.
            batch = images[torch.arange(-1, -1 - size, -1) % len(images)]
            expected = model(batch)
            for _ in range(NUM_CALLS):
                difference = float((graph(batch) - expected).abs().max())
                if not difference <= TOLERANCE:
                    raise ParityError(
                        f"the exported graph deviates from the eager model by {difference:.3g} on a batch of {size}; "
                        f"allowed is {TOLERANCE:g}"
                    )
                worst = max(worst, difference)
    return Parity(TOLERANCE, worst, list(BATCH_SIZES))


def export_variant(run: Run, variant: Variant, config: ExportConfig) -> GraphCard:
    """Leave one variant's graph and sidecar in the run; raises ParityError, and leaves none, if it is not faithful."""
    model = load_variant(run, variant)
    images, _ = load_split(run, "validation")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / run.graph(variant).name
        if variant == "aoti":
            make_package(model, images[:2], made)
        else:
            torch.jit.save(compile_graph(model, config.compile, images[:2]), made)
        # What is checked is what will be served: the saved graph, read back.
        parity = check_parity(load_compiled(made), model, images)
        write_bytes(run.graph(variant), made.read_bytes())
    card = GraphCard(
        variant=variant,
        compile="aoti" if variant == "aoti" else config.compile,
        parity=parity,
        size_bytes=run.graph(variant).stat().st_size,
        sha256=sha256(run.graph(variant)),
        weights_sha256=weights_sha256(run, variant),
        torch_version=torch.__version__,
        optimize=find_fastest(run.graph(variant), images),
        compiled_for=compiled_for() if variant == "aoti" else None,
    )
    write_json(run.graph_card(variant), card)
    print(
        f"{variant}: {card.compile}, {card.size_bytes / 1e6:.2f} MB, within {parity.max_abs_difference:.1g} of the "
        f"eager model on batches of {', '.join(map(str, parity.batch_sizes))} (allowed {parity.tolerance:g})"
    )
    forms = (f"{each.form} up to {each.max_batch_size or 'any size'}" for each in card.optimize.forms)
    print(f"{variant}: fastest on one thread as {', '.join(forms)}")
    return card


def load_graph_card(run: Run, variant: Variant) -> GraphCard:
    """Return the sidecar of the variant's graph; raises RunError if it was not exported."""
    document = read_json(run.graph_card(variant), written_by="export")
    if "optimize" not in document:
        raise RunError(f"{run.graph_card(variant)} is of an older release; run the stage export again")
    document["parity"] = Parity(**document["parity"])
    document["optimize"] = read_optimize(document["optimize"])
    return GraphCard(**document)


def check_export(architecture: Architecture, config: ExportConfig) -> None:
    """Raise SettingError for what the model, or this machine, cannot be exported as, before any work is done."""
    check_compile(architecture, config)
    if config.aoti:
        check_compiler()
    if config.onnx:
        check_packages()


def exported_variants(run: Run) -> list[Variant]:
    """Return the variants that every run has, and those on request that this one was exported with."""
    return [*run.variants, *(variant for variant in ON_REQUEST if run.graph_card(variant).exists())]


def export(run: Run, config: ExportConfig) -> None:
    """Leave the graphs of all variants in the run, and the table that compares them."""
    check_export(load_card(run).architecture, config)
    # What an earlier export left and this one is not asked for, or fails at.
    for left in (*map(run.graph_card, ON_REQUEST), run.onnx, run.onnx_card):
        left.unlink(missing_ok=True)
    images, _ = load_split(run, "validation")
    cards = {variant: export_variant(run, variant, config) for variant in run.variants}
    if config.aoti:
        cards["aoti"] = export_variant(run, "aoti", config)
        save_evaluation(run, "aoti", evaluate_model(load_compiled(run.graph("aoti")), run))
    if config.onnx:
        export_onnx(run, load_variant(run, "fp32"), images)
    compare(run, {variant: as_served(run.graph(variant), card.optimize) for variant, card in cards.items()}, images)
