"""Every file name that a run leaves, and how its files are written."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
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


@dataclass(frozen=True)
class Run:
    """The folder of one run. It holds everything that the stages hand to each other."""

    folder: Path

    @property
    def id(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    @property
    def config(self) -> Path:
        """The options, written by prepare and by each stage that is given others."""
        return self.folder / "config.json"

    @property
    def dataset(self) -> Path:
        """Classes, sizes, channel statistics: the sidecar of the arrays beside it."""
        return self.folder / "data" / "dataset.json"

    def images(self, split: Split) -> Path:
        """Uint8 [N, C, H, W]."""
        return self.folder / "data" / f"{split}-images.npy"

    def labels(self, split: Split) -> Path:
        """Int64 [N]."""
        return self.folder / "data" / f"{split}-labels.npy"

    @property
    def weights(self) -> Path:
        """The state dict of the best epoch."""
        return self.folder / "weights.pt"

    @property
    def weights_card(self) -> Path:
        """The sidecar of the weights: all that is needed to rebuild the model."""
        return self.folder / "weights.json"

    @property
    def history(self) -> Path:
        """One entry per epoch."""
        return self.folder / "history.json"

    @property
    def record(self) -> Path:
        """Config, seed, code, environment, figures and sums of the files: how this run came about, and its state."""
        return self.folder / "record.json"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.folder / "tensorboard"

    @property
    def mlflow(self) -> Path:
        """Which run of which MLflow store this one is, where it is followed there."""
        return self.folder / "mlflow.json"

    @property
    def validation_confusion_matrix(self) -> Path:
        """A picture of the validation split under the kept weights."""
        return self.folder / "confusion-matrix-validation.png"

    @property
    def learning_curves(self) -> Path:
        """The history as a picture."""
        return self.folder / "learning-curves.png"

    @property
    def checkpoints(self) -> Path:
        """Folder of what an interrupted training goes on from; see training/engine/checkpoint.py for its names."""
        return self.folder / "checkpoints"

    @property
    def training_trace(self) -> Path:
        """Operators of a few training steps over time, for Perfetto or chrome://tracing."""
        return self.folder / "training-trace.json"

    @property
    def training_profile(self) -> Path:
        """The same steps as a table of operators by time."""
        return self.folder / "training-profile.txt"

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

    @property
    def onnx(self) -> Path:
        """The fp32 graph as ONNX."""
        return self.folder / "onnx" / "model.onnx"

    @property
    def onnx_card(self) -> Path:
        """The sidecar of that file: its parity in ONNX Runtime."""
        return self.folder / "onnx" / "model.json"

    @property
    def comparison(self) -> Path:
        """Size, accuracy and latency of the variants, for programs."""
        return self.folder / "variants.json"

    @property
    def comparison_table(self) -> Path:
        """The same for people."""
        return self.folder / "variants.md"

    @property
    def archives(self) -> Path:
        """The entries that this run's last archive stage added to the model store."""
        return self.folder / "archives.json"


@dataclass(frozen=True)
class Sweep:
    """The folder of one sweep: a study, the data of all its trials, and a run for each."""

    folder: Path

    @property
    def prepared(self) -> Run:
        """The folder itself as a run that is prepared and no more: it holds the data that the trials share."""
        return Run(self.folder)

    @property
    def options(self) -> Path:
        """What was asked for when the sweep was begun."""
        return self.folder / "options.json"

    @property
    def study(self) -> Path:
        """Optuna's SQLite database."""
        return self.folder / "study.db"

    @property
    def trials(self) -> Path:
        """Folder of the trials' runs."""
        return self.folder / "trials"

    def trial(self, number: int) -> Run:
        """The run of a trial; numbers count those that came to an end, from 0."""
        return Run(self.trials / f"{number:03d}")

    @property
    def summary(self) -> Path:
        """Every trial with its values and its end, for programs."""
        return self.folder / "sweep.json"

    @property
    def table(self) -> Path:
        """The same for people."""
        return self.folder / "sweep.md"


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
    plain = asdict(document) if hasattr(document, "__dataclass_fields__") else document  # type: ignore[call-overload]
    # NaN is no JSON: a number that is none must fail here, not in a reader.
    write_bytes(path, (json.dumps(plain, indent=2, allow_nan=False) + "\n").encode())


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Write the file inside; raises StorageError, naming it, if that does not work."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write the file so that a reader sees the old content or the new, never a part; raises StorageError."""
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, hidden = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o644)
            Path(hidden).replace(path)
        except BaseException:
            Path(hidden).unlink(missing_ok=True)
            raise


def sha256(path: Path) -> str:
    """Return the file's SHA-256 sum in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
