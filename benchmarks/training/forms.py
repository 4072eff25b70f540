"""The same network in every form that it can be run in, at batch sizes that are served and trained."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.operators import missing_compiler
from benchmarks.training.table import Figure, Row, Table
from benchmarks.training.timing import ON_CPU, in_turns
from training.evaluation.threads import one_thread
from training.export.compile import compile_graph
from training.export.fastest_form import apply_form
from training.export.onnx_file import INPUT, make_onnx, missing_packages
from training.int8.quantize import to_int8_dynamic, to_int8_static
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions

SIDE, NUM_CLASSES = 28, 10
TOLERANCE = 1e-4  # of a float32 form to the eager one

Way = Callable[[Tensor], Any]


def network_forms(seconds: float, batch_sizes: tuple[int, ...]) -> Table:
    """Measure the forms of an untrained ResNet-20: what its weights are does not change how long it takes."""
    torch.manual_seed(0)
    network = as_convolutions(build_model("resnet20", num_classes=NUM_CLASSES, channels=1))
    graph = ServingGraph(Normalize([0.13], [0.31]), network).eval()
    images = torch.randint(0, 256, (max(batch_sizes), 1, SIDE, SIDE), dtype=torch.uint8)
    columns = tuple(f"batch of {size}" for size in batch_sizes)
    with one_thread(), torch.inference_mode():
        ways, missing = forms_of(graph, images)
        rows: dict[str, dict[str, Figure]] = {name: {} for name in ways}
        for size, column in zip(batch_sizes, columns, strict=True):
            calls = {name: partial(way, images[:size]) for name, way in ways.items()}
            for name, figure in in_turns(calls, seconds, 1e3).items():
                rows[name][column] = figure
    every: dict[str, Row] = {**rows, **missing}
    last = columns[-1]
    speeds = ", ".join(f"{name} {batch_sizes[-1] / row[last].median * 1e3:,.0f}" for name, row in rows.items())
    return Table(
        name="forms",
        title="ResNet-20 in all its forms",
        note=(
            f"{SIDE} x {SIDE} pixels, normalisation and softmax included, one thread. int8-static is traced and "
            "frozen, as int8-dynamic is; int8-qat has int8-static's kernels and takes its time. "
            f"{ON_CPU}"
        ),
        unit="ms",
        columns=columns,
        rows=every,
        findings=[f"Images/s at a {last}: {speeds}."],
    )


def forms_of(graph: ServingGraph, images: Tensor) -> tuple[dict[str, Way], dict[str, str]]:
    """Return the forms of a graph by name, and why others are missing.

    Raises ValueError if one in float32 does not answer like the eager graph.
    """
    ways: dict[str, Way] = {"eager": graph}
    missing: dict[str, str] = {}
    traced = compile_graph(graph, "trace", images[:2])
    ways["traced"] = traced
    ways["scripted"] = compile_graph(graph, "script", images[:2])
    ways["frozen"] = apply_form(_again(traced), "frozen")
    ways["optimized for inference"] = apply_form(_again(traced), "optimized")
    ways["optimized, channels last"] = apply_form(_again(traced), "optimized-channels-last")
    if no_compiler := missing_compiler():
        missing["torch.compile"] = no_compiler
    else:
        ways["torch.compile"] = torch.compile(copy.deepcopy(graph), dynamic=False)
    if absent := missing_packages():
        missing["ONNX Runtime"] = f"not installed: {', '.join(absent)}"
    else:
        ways["ONNX Runtime"] = onnx_form(graph, images[:2])
    expected = graph(images[:2])
    for name, way in ways.items():
        difference = float((torch.as_tensor(way(images[:2])) - expected).abs().max())
        if not difference <= TOLERANCE:
            raise ValueError(f"{name} is off the eager form by {difference:.3g}; allowed is {TOLERANCE:g}")
    for name, quantized in (
        ("int8-dynamic", to_int8_dynamic(graph)),
        ("int8-static", to_int8_static(graph, images[:32])),
    ):
        ways[name] = apply_form(_again(compile_graph(quantized, "trace", images[:2])), "frozen")
    return ways, missing


def onnx_form(graph: ServingGraph, images: Tensor) -> Way:
    """Return the graph as ONNX Runtime runs it, on one thread; any batch size."""
    import onnxruntime  # noqa: PLC0415 - an extra

    program = make_onnx(graph, images)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda batch: session.run(None, {INPUT: batch.numpy()})[0]


def _again(graph: Any) -> Any:
    """Return a copy, read back as a server reads it: forms are made in place."""
    buffer = io.BytesIO()
    torch.jit.save(graph, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer).eval()  # type: ignore[no-untyped-call]
