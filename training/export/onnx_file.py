"""The fp32 graph as ONNX, for whatever runs that; held against ONNX Runtime before it is left in the run."""

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from training.artifacts import Run, sha256, write_bytes, write_json
from training.errors import CompileError, ParityError, SettingError, TrainingError
from training.export.compile import export_program, quiet
from training.models.weights import weights_sha256
from training.options.config import MOST_IMAGES

NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-5
NUM_IMAGES = 64
BATCH_SIZES = (1, 7, NUM_IMAGES)
INPUT, OUTPUT = "images", "probabilities"


@dataclass(frozen=True)
class OnnxCard:
    """The sidecar of the file: names, opset, and the largest difference from the eager model."""

    input: str
    output: str
    opset: int
    num_images: int
    batch_sizes: list[int]
    tolerance: float
    max_abs_difference: float
    onnxruntime_version: str
    size_bytes: int
    sha256: str
    weights_sha256: str


def missing_packages() -> list[str]:
    """Return those of the packages that the file is made and checked with that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def check_packages() -> None:
    """Raise SettingError if what the file is made and checked with is not installed."""
    if missing := missing_packages():
        raise SettingError(f"--onnx needs {', '.join(missing)}: pip install -c constraints.txt -e '.[onnx]'")


def make_onnx(model: nn.Module, images: Tensor) -> Any:
    """Return the model as torch's ONNXProgram, for 1 to MOST_IMAGES images of the shape of `images`.

    Raises CompileError if ONNX, or one graph, cannot hold it.
    """
    program = export_program(model, images)
    with _translated():
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: Dim("batch", min=1, max=MOST_IMAGES)},),
        )
    assert made is not None, "the exporter by torch.export returns what it made"
    return made


def export_onnx(run: Run, model: nn.Module, images: Tensor) -> OnnxCard:
    """Leave the model as ONNX in the run, with its sidecar; `images`, uint8 [N, C, H, W], are what it is checked on.

    It takes the packages; see check_packages. Raises CompileError if ONNX cannot hold the model, ParityError if ONNX
    Runtime answers otherwise.
    """
    import onnxruntime  # noqa: PLC0415 - an extra

    made = make_onnx(model, images[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / run.onnx.name
        with _translated():
            # One file: weights that lie beside it get lost.
            made.save(str(path), external_data=False)
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            # A small split begins anew, so that the largest batch is checked, too.
            difference = max_difference(session, model, images[torch.arange(NUM_IMAGES) % len(images)])
        write_bytes(run.onnx, path.read_bytes())
    card = OnnxCard(
        input=INPUT,
        output=OUTPUT,
        opset=int(made.model.opset_imports[""]),
        num_images=min(NUM_IMAGES, len(images)),
        batch_sizes=list(BATCH_SIZES),
        tolerance=TOLERANCE,
        max_abs_difference=difference,
        onnxruntime_version=onnxruntime.__version__,
        size_bytes=run.onnx.stat().st_size,
        sha256=sha256(run.onnx),
        weights_sha256=weights_sha256(run, "fp32"),
    )
    write_json(run.onnx_card, card)
    print(
        f"onnx: opset {card.opset}, {card.size_bytes / 1e6:.2f} MB, ONNX Runtime within {difference:.1g} of the eager "
        f"model on {card.num_images} images (allowed {TOLERANCE:g})"
    )
    return card


def max_difference(session: Any, model: nn.Module, images: Tensor) -> float:
    """Return the largest difference between the probabilities of both; raises ParityError beyond the tolerance."""
    worst = 0.0
    for size in BATCH_SIZES:
        for batch in torch.split(images, size):
            with torch.inference_mode():
                expected = model(batch)
            (answered,) = session.run([OUTPUT], {INPUT: batch.numpy()})
            difference = float((torch.from_numpy(answered) - expected).abs().max())
            if not difference <= TOLERANCE:
                raise ParityError(
                    f"ONNX Runtime deviates from the eager model by {difference:.3g} on a batch of {len(batch)}; "
                    f"allowed is {TOLERANCE:g}"
                )
            worst = max(worst, difference)
    return worst


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what exporter and runtime raise into a CompileError; each has errors of many kinds."""
    try:
        with quiet():
            yield
    except TrainingError:
        raise
    except Exception as error:
        # The exporter's own error tells of its steps; what set it off says what is wrong.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise CompileError(f"ONNX cannot hold this model: {reason}") from error
