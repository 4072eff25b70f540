"""Which forms of a graph are fastest at the batch sizes that are served: contract.optimize.

The archive holds the portable graph; the handler makes the forms when it loads, and its code makes them here.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from training.evaluation.evaluate import Model
from training.evaluation.latency import measure_latency
from training.export.graph_file import PACKAGE, load_compiled
from training.handler_code import handler_module
from training.progress import progress

GraphForm = Literal["portable", "frozen", "frozen-channels-last", "optimized", "optimized-channels-last", "fused"]
FORMS: tuple[GraphForm, ...] = get_args(GraphForm)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
SECONDS_PER_BATCH_SIZE = 0.5
# A second form costs memory for its weights and time to load, the first one time to load.
LEAST_GAIN = 0.02
TOLERANCE = 1e-5


@dataclass(frozen=True)
class ServedForm:
    """Which form answers the batches up to a size; None is any size."""

    form: GraphForm
    max_batch_size: int | None


@dataclass(frozen=True)
class Optimize:
    """The one or two forms to serve with, and what was measured for it: medians by form, in the order of sizes."""

    forms: list[ServedForm]
    num_threads: int
    processor: str
    batch_sizes: list[int]
    median_ms: dict[GraphForm, list[float]]


def read_optimize(document: dict[str, Any]) -> Optimize:
    """Return what was written as JSON."""
    return Optimize(**{**document, "forms": [ServedForm(**each) for each in document["forms"]]})


def apply_form(graph: Any, form: GraphForm) -> Model:
    """Return the graph in that form; the one that is passed must not be used any more."""
    forms = handler_module("graph_forms")
    loaded: Model = forms.Loaded(forms.Choice(form), forms.apply_form(graph, form))
    return loaded


def find_fastest(graph: Path, images: Tensor, tolerance: float = TOLERANCE) -> Optimize:
    """Return which forms of the graph are fastest on uint8 images [N, C, H, W], one thread each.

    Forms that torch cannot make of this graph, or that are off its answers by more than the tolerance, are left out.
    """
    models: dict[GraphForm, Model] = {"portable": load_compiled(graph)}
    # A library's code is what it is.
    others = () if graph.suffix == PACKAGE else FORMS[1:]
    with torch.inference_mode():
        batch = images[:7]
        expected = models["portable"](batch)
        for form in progress(others, "make forms", "forms"):
            try:
                model = apply_form(load_compiled(graph), form)
                # The second call runs other code than the first.
                difference = max(float((model(batch) - expected).abs().max()) for _ in range(2))
            except (RuntimeError, AttributeError) as error:  # the latter: torch was built without the compiler
                tqdm.write(f"{graph.parent.name}: no form {form}: {str(error).strip().splitlines()[-1]}")
                continue
            if difference <= tolerance:
                models[form] = model
            else:
                tqdm.write(f"{graph.parent.name}: no form {form}, it is off by {difference:.3g}")
    latencies = measure_latency(models, images, BATCH_SIZES, SECONDS_PER_BATCH_SIZE)
    medians: dict[GraphForm, list[float]] = {
        form: [round(each.median_ms, 4) for each in measured] for form, measured in latencies.items()
    }
    return Optimize(
        forms=fastest_forms(medians),
        num_threads=1,
        processor=torch.backends.cpu.get_cpu_capability(),
        batch_sizes=list(BATCH_SIZES),
        median_ms=medians,
    )


def fastest_forms(median_ms: dict[GraphForm, list[float]]) -> list[ServedForm]:
    """Return the form, or the two with the size between them, that take the least time on average over the sizes.

    The average is of ratios, so that no size counts for more than another. What is less to load is kept unless the
    gain is at least LEAST_GAIN.
    """

    def cost(times: list[float]) -> float:
        return geometric_mean(times)

    best, least = [ServedForm("portable", None)], cost(median_ms["portable"])
    single = min(median_ms, key=lambda form: cost(median_ms[form]))
    if cost(median_ms[single]) <= least * (1 - LEAST_GAIN):
        best, least = [ServedForm(single, None)], cost(median_ms[single])
    pairs = {
        (small, split, large): cost([*median_ms[small][:split], *median_ms[large][split:]])
        for small in median_ms
        for large in median_ms
        if small != large
        for split in range(1, len(BATCH_SIZES))
    }
    if pairs:
        small, split, large = min(pairs, key=lambda pair: pairs[pair])
        if pairs[small, split, large] <= least * (1 - LEAST_GAIN):
            return [ServedForm(small, BATCH_SIZES[split - 1]), ServedForm(large, None)]
    return best


def as_served(graph: Path, optimize: Optimize) -> Model:
    """Return what answers like the handler does: each batch by the form for its size."""
    made = [(each.max_batch_size, apply_form(load_compiled(graph), each.form)) for each in optimize.forms]

    def answer(batch: Tensor) -> Tensor:
        return next(model for bound, model in made if bound is None or len(batch) <= bound)(batch)

    return answer
