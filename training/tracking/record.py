"""The record of a run: how it came about, what it reached, which files it left."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from training.artifacts import Run, read_json, sha256, write_json
from training.engine.history import EpochRecord
from training.evaluation.evaluate import is_evaluated, load_evaluation
from training.export.export import exported_variants
from training.options.config import Config
from training.tracking.environment import find_code, find_environment

Status = Literal["running", "finished", "pruned", "interrupted", "failed"]
FIGURES = ("num_samples", "accuracy", "negative_log_likelihood", "expected_calibration_error")


class RecordFile:
    """Keeps record.json up to date while the run trains; all its state is the file."""

    def __init__(self, run: Run, config: Config) -> None:
        self._run = run
        self._config = config

    def begin(self, *, resumed: bool) -> None:
        """Write everything that is known before the next step; of a resumed training that includes its epochs."""
        code = find_code()
        document = {
            "run": self._run.id,
            "status": "running",
            "reason": None,
            "started": _now(),
            "ended": None,
            "command": sys.argv[1:],
            "seed": self._config.train.seed,
            "config": asdict(self._config),
            "code": None if code is None else asdict(code),
            "environment": asdict(find_environment()),
            "epochs": load_record(self._run)["epochs"] if resumed and self._run.record.is_file() else [],
            "kept_epoch": None,
            "figures": {},
            "artifacts": {},
        }
        write_json(self._run.record, document)

    def epoch(self, record: EpochRecord) -> None:
        """Add the epoch; those from it on that are there already were of a training that did not get further."""
        document = load_record(self._run)
        before = [each for each in document["epochs"] if each["epoch"] < record.epoch]
        write_json(self._run.record, document | {"epochs": [*before, asdict(record)]})

    def end(self, status: Status, reason: str | None) -> None:
        """Write how training ended, and what is there now."""
        changes: dict[str, Any] = {"status": status, "reason": reason, "ended": _now()}
        if status == "finished":
            changes["kept_epoch"] = read_json(self._run.history, written_by="train")["kept_epoch"]
        write_json(self._run.record, load_record(self._run) | changes)
        refresh(self._run)


def load_record(run: Run) -> dict[str, Any]:
    """Return the record; raises RunError if the run was not trained."""
    return read_json(run.record, written_by="train")


def epochs_of(record: dict[str, Any]) -> list[EpochRecord]:
    """Return the epochs that a record has."""
    return [EpochRecord(**each) for each in record["epochs"]]


def refresh(run: Run) -> None:
    """Bring figures and files in the record up to date, after a stage that left some; no record, nothing to do."""
    if not run.record.is_file():
        return
    figures = {}
    for variant in exported_variants(run):
        if is_evaluated(run, variant):
            found = load_evaluation(run, variant).report
            figures[variant] = {name: getattr(found, name) for name in FIGURES}
    write_json(run.record, load_record(run) | {"figures": figures, "artifacts": artifacts(run)})


def artifacts(run: Run) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 sum of the run's files by their paths; not of the data, nor of what is still written."""
    skipped = {run.dataset.parent, run.tensorboard, run.checkpoints, run.qat.tensorboard, run.qat.checkpoints}
    found = {}
    for path in sorted(run.folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(run.folder).parts)
        if path.is_file() and not hidden and path != run.record and skipped.isdisjoint(path.parents):
            name = path.relative_to(run.folder).as_posix()
            found[name] = {"size_bytes": path.stat().st_size, "sha256": sha256(path)}
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
