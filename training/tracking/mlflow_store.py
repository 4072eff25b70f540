"""MLflow, in a local store: a run's parameters, figures and files, and its exported model as a version."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow.pytorch
import torch
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from training.artifacts import Run, read_json, write_json
from training.engine.history import EpochRecord
from training.errors import TrackingError
from training.evaluation.evaluate import load_evaluation
from training.export.export import exported_variants
from training.options.config import Config
from training.options.flat_config import flatten
from training.tracking.record import FIGURES, Status, load_record

ENDINGS: dict[Status, str] = {
    "finished": "FINISHED",
    "pruned": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
MODEL = "model"
GRAPHS = "graphs"


class MlflowRun:
    """Follows a run; the experiment is named after the model."""

    def __init__(self, run: Run, config: Config, folder: Path) -> None:
        self._run = run
        self._config = config
        self._folder = folder

    def begin(self, *, resumed: bool) -> None:
        """Open the run again, or a new one, also where a resumed training was not followed before."""
        if not (resumed and self._run.mlflow.is_file()):
            self._create()
            return
        with connected(self._run) as (client, run_id):
            client.update_run(run_id, status="RUNNING")

    def epoch(self, record: EpochRecord) -> None:
        """Write the epoch's figures; their step is the epoch."""
        now = _milliseconds()
        figures = {name: value for name, value in asdict(record).items() if name != "epoch"}
        metrics = [Metric(name, value, now, record.epoch) for name, value in figures.items()]
        with connected(self._run) as (client, run_id):
            client.log_batch(run_id, metrics=metrics)

    def end(self, status: Status, reason: str | None) -> None:
        """Copy the run's files and close the run."""
        run = self._run
        if not run.mlflow.is_file():
            return  # the store has refused it
        paths = [run.config, run.record, run.history, run.weights, run.weights_card, run.dataset]
        if status == "finished":
            paths.append(run.validation_confusion_matrix)
        with connected(run) as (client, run_id):
            for path in paths:
                if path.is_file():
                    client.log_artifact(run_id, str(path))
            # A run that was stopped and resumed has one of then.
            client.set_tag(run_id, "reason", reason or "")
            client.set_terminated(run_id, ENDINGS[status])

    def _create(self) -> None:
        folder = self._folder.resolve()
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        with _translated(uri):
            folder.mkdir(parents=True, exist_ok=True)
            run_id = self._create_in(MlflowClient(tracking_uri=uri, registry_uri=uri), folder)
        write_json(self._run.mlflow, {"tracking_uri": uri, "run_id": run_id})

    def _create_in(self, client: MlflowClient, folder: Path) -> str:
        experiment = client.get_experiment_by_name(self._config.name)
        experiment_id = (
            client.create_experiment(self._config.name, artifact_location=(folder / "artifacts").as_uri())
            if experiment is None
            else experiment.experiment_id
        )
        run_id: str = client.create_run(experiment_id, run_name=self._run.id).info.run_id
        document = load_record(self._run)
        code: dict[str, Any] = document["code"] or {}
        tags = {"run_folder": str(self._run.folder.resolve()), "python": document["environment"]["python"]}
        if code:
            tags |= {"mlflow.source.git.commit": code["commit"], "dirty": str(code["dirty"]).lower()}
        client.log_batch(
            run_id,
            params=[Param(name, str(value)) for name, value in flatten(asdict(self._config)).items()],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        return run_id


@contextmanager
def connected(run: Run) -> Iterator[tuple[MlflowClient, str]]:
    """Give a client of the store that the run is followed in, and the run's id there.

    Raises TrackingError for what the store refuses inside.
    """
    document = read_json(run.mlflow, written_by="train --tracking mlflow")
    uri = document["tracking_uri"]
    with _translated(uri):
        yield MlflowClient(tracking_uri=uri, registry_uri=uri), document["run_id"]


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        # After its first line a database's error has the statement and its values.
        first, *_ = str(error).split("\n")
        raise TrackingError(f"MLflow's store {uri} refused: {first}") from error


def register(run: Run, model: str) -> int:
    """Add the exported graphs and their figures to the run, register the fp32 one; return the version it got.

    The version is loaded by `mlflow.pytorch.load_model("models:/MODEL/VERSION")`: the graph that is served.
    """
    with connected(run) as (client, run_id):
        _add_graphs(run, client, run_id)
        return _add_version(run, model, client, run_id)


def _add_graphs(run: Run, client: MlflowClient, run_id: str) -> None:
    figures: dict[str, float] = {}
    for variant in exported_variants(run):
        client.log_artifact(run_id, str(run.graph(variant)), f"{GRAPHS}/{variant}")
        client.log_artifact(run_id, str(run.graph_card(variant)), f"{GRAPHS}/{variant}")
        found = load_evaluation(run, variant).report
        figures |= {f"test_{name}.{variant}": float(getattr(found, name)) for name in FIGURES}
    now = _milliseconds()
    client.log_batch(run_id, metrics=[Metric(name, value, now, 0) for name, value in figures.items()])


def _add_version(run: Run, model: str, client: MlflowClient, run_id: str) -> int:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Its own classes make MLflow warn, as it loads what it has for other kinds of models.
        warnings.filterwarnings("ignore", ".*Any type hint is inferred", UserWarning)
        graph = torch.jit.load(run.graph("fp32"))  # type: ignore[no-untyped-call]
        # For a TorchScript module "pickle" means torch.jit.save; the requirement spares MLflow a search for others.
        mlflow.pytorch.save_model(
            graph, f"{folder}/{MODEL}", pip_requirements=[f"torch=={torch.__version__}"], serialization_format="pickle"
        )
        client.log_artifacts(run_id, f"{folder}/{MODEL}", MODEL)
    try:
        client.create_registered_model(model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    card = read_json(run.graph_card("fp32"), written_by="export")
    version = client.create_model_version(
        model,
        f"{client.get_run(run_id).info.artifact_uri}/{MODEL}",
        run_id=run_id,
        tags={"run": run.id, "compile": card["compile"], "weights_sha256": card["weights_sha256"]},
    )
    return int(version.version)


def _milliseconds() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
