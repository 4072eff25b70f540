"""Who follows a training: the one seam between the loop and what is written of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from training.artifacts import Run
from training.data.dataset import load_dataset, load_split
from training.engine.history import EpochRecord, OnEpoch
from training.errors import Interrupted, SettingError, TrainingError, TrialPruned
from training.evaluation.evaluate import Model, predict, report
from training.evaluation.plots import plot_confusion_matrix
from training.models.weights import load_graph
from training.options.config import Config
from training.options.verbs import TrackingOptions
from training.tracking.record import RecordFile, Status


class Tracker(Protocol):
    """Is told of a training, in the process that has its epochs."""

    def begin(self, *, resumed: bool) -> None:
        """Training is about to begin anew, or, resumed, to go on."""

    def epoch(self, record: EpochRecord) -> None:
        """One more epoch is over; a resumed training may tell one again."""

    def end(self, status: Status, reason: str | None) -> None:
        """Training is over; `reason` says why if it was not finished."""


class Trackers:
    """Tells every tracker of a training, in their order."""

    def __init__(self, run: Run, trackers: list[Tracker], also: OnEpoch | None, *, resumed: bool) -> None:
        self._run = run
        self._trackers = trackers
        self._also = also
        self._resumed = resumed
        self.has_begun = False

    def begin(self) -> None:
        """Begin; what was known of an earlier training is overwritten from here on."""
        self.has_begun = True
        if not self._resumed:
            # Whoever follows the new training: the run in MLflow was that of other weights.
            self._run.mlflow.unlink(missing_ok=True)
        for tracker in self._trackers:
            tracker.begin(resumed=self._resumed)

    def epoch(self, record: EpochRecord) -> None:
        """Take one epoch; `also` is last, so that an epoch after which it stops the training is written."""
        for tracker in self._trackers:
            tracker.epoch(record)
        if self._also is not None:
            self._also(record)

    def end(self, status: Status, reason: str | None) -> None:
        """End; of a training that was refused before it began there is nothing to tell."""
        if self.has_begun:
            for tracker in self._trackers:
                tracker.end(status, reason)


@contextmanager
def tracked(
    run: Run,
    config: Config,
    options: TrackingOptions,
    also: OnEpoch | None = None,
    *,
    resumed: bool = False,
    draw: Callable[[], None] | None = None,
) -> Iterator[Trackers]:
    """Give what follows the training inside; write down how it ends, however it does, if it has begun.

    `draw` leaves the picture of the validation split, by default that of the run's fp32 weights.
    Raises SettingError, before anything is written, for a tool that is not installed; TrackingError for one that fails.
    """
    trackers = Trackers(run, build_trackers(run, config, options), also, resumed=resumed)
    try:
        yield trackers
    except BaseException as error:
        trackers.end(*_how(error))
        raise
    if draw is None:
        draw_validation(run.validation_confusion_matrix, run, load_graph(run))
    else:
        draw()
    trackers.end("finished", None)


def build_trackers(run: Run, config: Config, options: TrackingOptions) -> list[Tracker]:
    """Return those that the options name, the record first: the others may copy it."""
    trackers: list[Tracker] = [RecordFile(run, config)]
    # Each is imported where it is wanted: together they take longer than torch.
    if "tensorboard" in options.tracking:
        from training.tracking.tensorboard_log import TensorBoardLog  # noqa: PLC0415

        trackers.append(TensorBoardLog(run))
    if "mlflow" in options.tracking:
        with importing_mlflow():
            from training.tracking.mlflow_store import MlflowRun  # noqa: PLC0415

        trackers.append(MlflowRun(run, config, options.mlflow or Path("mlruns")))
    return trackers


def register_export(run: Run, model: str) -> None:
    """Make an exported run that MLflow has followed a version of the registered model, and say so; others are left."""
    if not run.mlflow.is_file():
        return
    with importing_mlflow():
        from training.tracking.mlflow_store import register  # noqa: PLC0415

    print(f"MLflow: {model}, version {register(run, model)}")


@contextmanager
def importing_mlflow() -> Iterator[None]:
    """Import MLflow and its SQL store inside; raises SettingError, naming what brings them, if they are not there."""
    # Both are read as it is imported. It reports its use to its makers unless it is told not to.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Its errors come with their tracebacks; what they say, TrackingError says.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    try:
        import alembic  # noqa: F401, PLC0415

        yield
    except ImportError as error:
        raise SettingError(
            f"MLflow cannot be used ({error}); the extra tracking brings it: pip install 'torchgate[tracking]'"
        ) from error


def draw_validation(picture: Path, run: Run, model: Model) -> None:
    """Leave a picture of what a model answers on the run's validation split."""
    classes = load_dataset(run).classes
    images, labels = load_split(run, "validation")
    found = report(predict(model, images), labels.numpy(), classes, "validation")
    plot_confusion_matrix(picture, found.confusion_matrix, classes, "validation")


def _how(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, TrialPruned):
        return "pruned", str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return "interrupted", str(error) or "interrupted"
    return "failed", str(error) if isinstance(error, TrainingError) else repr(error)
