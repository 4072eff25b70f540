"""The stage that makes TorchScript files, and refuses those that do not answer like the model."""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from training.artifacts import VARIANTS, Run, Variant, read_json, sha256, write_bytes, write_json
from training.compare import compare
from training.config import Compile, ExportConfig
from training.data.dataset import load_split
from training.errors import ParityError, RunError
from training.forms import Optimize, as_served, find_fastest, read_optimize
from training.quantize import load_variant, quantization_deprecations_ignored
from training.weights import load_card

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
    compile: Compile
    parity: Parity
    size_bytes: int
    sha256: str
    weights_sha256: str
    torch_version: str
    optimize: Optimize


def _script(model: nn.Module) -> Any:
    """Return the model as torch.jit.script has it.

    It knows builtins by their addresses and keeps those of some that are gone: now and then one of the model's own
    lists lies at such an address and is taken for a builtin. Such a list is put elsewhere first.
    """
    builtins = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]  # noqa: SLF001
    moved = []  # kept until the end, so that no copy comes to lie where its original was
    for module in model.modules():
        for name, value in list(vars(module).items()):
            while id(value) in builtins and isinstance(value, list | tuple):
                moved.append(value)
                value = type(value)([*value])  # noqa: PLW2901
                setattr(module, name, value)
    return torch.jit.script(model)


def compile_graph(model: nn.Module, method: Compile, images: Tensor) -> Any:
    """Return the model as TorchScript; `images`, uint8 [N, C, H, W] with N > 1, are what trace records.

    Raises ParityError if tracing meets code whose outcome depends on the images.
    """
    if method == "script":
        return _script(model)
    with warnings.catch_warnings(record=True) as caught:
        # Recorded, not raised: raised, it would come out of torch's C++ as a SystemError without its reason.
        warnings.simplefilter("always", TracerWarning)
        # The graph is checked on other batch sizes after it was saved; torch's own check repeats this one.
        graph = torch.jit.trace(model, images, check_trace=False)  # type: ignore[no-untyped-call]
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            raise ParityError(f"trace cannot record this model: {warning.message}; try --compile script")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return graph


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


def load_compiled(path: Path) -> Any:
    """Return the TorchScript file as a callable module, in eval mode, on the CPU."""
    with quantization_deprecations_ignored():
        # torch says it once in each process; from inside a graph it would go past Python's filters, to stderr.
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
    return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]


def export_variant(run: Run, variant: Variant, config: ExportConfig) -> GraphCard:
    """Leave one variant's graph and sidecar in the run; raises ParityError, and leaves none, if it is not faithful."""
    model = load_variant(run, variant)
    images, _ = load_split(run, "validation")
    buffer = io.BytesIO()
    torch.jit.save(compile_graph(model, config.compile, images[:2]), buffer)
    # What is checked is what will be served: the saved graph, read back.
    saved = torch.jit.load(io.BytesIO(buffer.getvalue()), map_location="cpu")  # type: ignore[no-untyped-call]
    parity = check_parity(saved, model, images)
    write_bytes(run.graph(variant), buffer.getvalue())
    card = GraphCard(
        variant=variant,
        compile=config.compile,
        parity=parity,
        size_bytes=run.graph(variant).stat().st_size,
        sha256=sha256(run.graph(variant)),
        weights_sha256=load_card(run).sha256,
        torch_version=torch.__version__,
        optimize=find_fastest(run.graph(variant), images),
    )
    write_json(run.graph_card(variant), card)
    print(
        f"{variant}: {config.compile}, {card.size_bytes / 1e6:.2f} MB, within {parity.max_abs_difference:.1g} of the "
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


def export(run: Run, config: ExportConfig) -> None:
    """Leave the graphs of all variants in the run, and the table that compares them."""
    cards = {variant: export_variant(run, variant, config) for variant in VARIANTS}
    images, _ = load_split(run, "validation")
    compare(run, {variant: as_served(run.graph(variant), card.optimize) for variant, card in cards.items()}, images)
