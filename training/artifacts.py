"""Every file name that a run leaves, and how its files are written."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from training.errors import RunError, StorageError

Split = Literal["train", "validation", "test"]
Variant = Literal["fp32", "int8-dynamic", "int8-static", "int8-qat", "aoti"]

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
# What every run has; Run.variants adds what this one was asked for.
VARIANTS: tuple[Variant, ...] = ("fp32", "int8-dynamic", "int8-static")
ON_REQUEST: tuple[Variant, ...] = ("aoti",)  # made by export where it is told to


class Below:
    """A path below the folder of what has it."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, owner: "Run | Sweep", kind: type) -> Path:
        """Return the path in the owner's folder."""
        return owner.folder.joinpath(*self._parts)


@dataclass(frozen=True)
class Run:
    """The folder of one run. It holds everything that the stages hand to each other."""

    folder: Path

    @property
    def id(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    config = Below("config.json")
    """The options, written by prepare and by each stage that is given others."""
    dataset = Below("data", "dataset.json")
    """Classes, sizes, channel statistics: the sidecar of the arrays beside it."""

    def images(self, split: Split) -> Path:
        """Uint8 [N, C, H, W]."""
        return self.folder / "data" / f"{split}-images.npy"

    def labels(self, split: Split) -> Path:
        """Int64 [N]."""
        return self.folder / "data" / f"{split}-labels.npy"

    weights = Below("weights.pt")
    """The state dict of the best epoch."""
    weights_card = Below("weights.json")
    """The sidecar of the weights: all that is needed to rebuild the model."""
    history = Below("history.json")
    """One entry per epoch."""
    record = Below("record.json")
    """Config, seed, code, environment, figures and sums of the files: how this run came about, and its state."""
    tensorboard = Below("tensorboard")
    """Folder of TensorBoard's event files."""
    mlflow = Below("mlflow.json")
    """Which run of which MLflow store this one is, where it is followed there."""
    validation_confusion_matrix = Below("confusion-matrix-validation.png")
    """A picture of the validation split under the kept weights."""
    learning_curves = Below("learning-curves.png")
    """The history as a picture."""
    checkpoints = Below("checkpoints")
    """Folder of what an interrupted training goes on from; see training/engine/checkpoint.py for its names."""
    training_trace = Below("training-trace.json")
    """Operators of a few training steps over time, for Perfetto or chrome://tracing."""
    training_profile = Below("training-profile.txt")
    """The same steps as a table of operators by time."""

    @property
    def qat(self) -> "Run":
        """Quantization-aware training, in the folder of its variant: weights, history, record and checkpoints.

        Its weights are the only ones that cannot be derived from `weights`.
        """
        return Run(self.folder / "int8-qat")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that this run has, whether they are exported yet or not."""
        return (*VARIANTS, "int8-qat") if self.qat.weights_card.exists() else VARIANTS

    def graph(self, variant: Variant) -> Path:
        """The TorchScript file; of aoti, the package with a library."""
        return self.folder / variant / ("model.pt2" if variant == "aoti" else "model.pt")

    def graph_card(self, variant: Variant) -> Path:
        """The sidecar of the graph: how it was compiled, its parity with the eager model."""
        return self.folder / variant / "model.json"

    def evaluation(self, variant: Variant) -> Path:
        """What evaluate found on the test split, and the reference from the validation split."""
        return self.folder / variant / "evaluation.json"

    def confusion_matrix(self, variant: Variant) -> Path:
        """A picture of the test split."""
        return self.folder / variant / "confusion-matrix.png"

    def reliability(self, variant: Variant) -> Path:
        """A picture of the test split."""
        return self.folder / variant / "reliability.png"

    onnx = Below("onnx", "model.onnx")
    """The fp32 graph as ONNX."""
    onnx_card = Below("onnx", "model.json")
    """The sidecar of that file: its parity in ONNX Runtime."""
    comparison = Below("variants.json")
    """Size, accuracy and latency of the variants, for programs."""
    comparison_table = Below("variants.md")
    """The same for people."""
    archives = Below("archives.json")
    """The entries that this run's last archive stage added to the model store."""


@dataclass(frozen=True)
class Sweep:
    """The folder of one sweep: a study, the data of all its trials, and a run for each."""

    folder: Path

    @property
    def prepared(self) -> Run:
        """The folder itself as a run that is prepared and no more: it holds the data that the trials share."""
        return Run(self.folder)

    options = Below("options.json")
    """What was asked for when the sweep was begun."""
    study = Below("study.db")
    """Optuna's SQLite database."""
    trials = Below("trials")
    """Folder of the trials' runs."""

    def trial(self, number: int) -> Run:
        """The run of a trial; numbers count those that came to an end, from 0."""
        return Run(self.trials / f"{number:03d}")

    summary = Below("sweep.json")
    """Every trial with its values and its end, for programs."""
    table = Below("sweep.md")
    """The same for people."""


def read_json(path: Path, written_by: str) -> dict[str, Any]:
    """Return the JSON object in a run's file; raises RunError, naming the verb that writes it, if there is none."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise RunError(f"{path} is not there; `python -m training {written_by}` writes it") from error
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}); `python -m training {written_by}` writes it anew") from error
    return document


def write_json(path: Path, document: object) -> None:
    """Write a dataclass or plain values as JSON, atomically; folders are made as needed."""
    write_bytes(path, as_json(document))


def as_json(document: object) -> bytes:
    """Return a dataclass or plain values as the JSON of a file."""
    plain = asdict(document) if hasattr(document, "__dataclass_fields__") else document  # type: ignore[call-overload]
    # NaN is no JSON: a number that is none must fail here, not in a reader.
    return (json.dumps(plain, indent=2, allow_nan=False) + "\n").encode()


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Write the file inside; raises StorageError, naming it, if that does not work."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write the file so that a reader sees the old content or the new, never a part; raises StorageError."""
    write_files({path: content})


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write files as `write_bytes` does, all or none: each is on the disk before the first is renamed into place."""
    hidden: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
                hidden[path] = Path(name)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                    os.fchmod(file.fileno(), 0o644)
        for path, written in hidden.items():
            with storing(path):
                written.replace(path)
    finally:
        for written in hidden.values():
            written.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Return the file's SHA-256 sum in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
