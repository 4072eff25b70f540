"""TensorBoard's scalars and pictures of a run."""

import shutil

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from training.artifacts import Run
from training.engine.history import EpochRecord
from training.tracking.record import Status, load_record


class TensorBoardLog:
    """Writes event files into the run's folder; steps are epochs."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._writer: SummaryWriter | None = None

    def begin(self, *, resumed: bool) -> None:
        """Remove what another training has left."""
        if not resumed:
            shutil.rmtree(self._run.tensorboard, ignore_errors=True)

    def epoch(self, record: EpochRecord) -> None:
        """Write the epoch's figures; training and validation share a chart."""
        writer = self._open(record.epoch)
        for name in ("loss", "accuracy"):
            for split in ("train", "validation"):
                writer.add_scalar(f"{name}/{split}", getattr(record, f"{split}_{name}"), record.epoch)
        writer.add_scalar("learning rate", record.learning_rate, record.epoch)
        writer.add_scalar("seconds per epoch", record.seconds, record.epoch)
        writer.flush()

    def end(self, status: Status, reason: str | None) -> None:
        """Write the confusion matrix and how it ended, and close the files."""
        document = load_record(self._run)
        step = len(document["epochs"])
        writer = self._open(step + 1)
        if status == "finished":
            with Image.open(self._run.validation_confusion_matrix) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            kept = document["kept_epoch"]
            writer.add_image("confusion matrix/validation", pixels, kept, dataformats="HWC")
        writer.add_text("status", status if reason is None else f"{status}: {reason}", step)
        writer.close()
        self._writer = None

    def _open(self, epoch: int) -> SummaryWriter:
        if self._writer is None:
            # A resumed training repeats epochs whose figures may lie here already: the reader drops those.
            self._writer = SummaryWriter(str(self._run.tensorboard), purge_step=epoch)
        return self._writer
