"""A run in a real MLflow store: parameters, figures, files, and its exported model as a version that answers."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import follow
from training.artifacts import Run, read_json, sha256, write_json
from training.commands.cli import dispatch
from training.data.dataset import load_split
from training.engine.history import EpochRecord
from training.errors import TrackingError
from training.options.config import Config
from training.options.flat_config import flatten
from training.options.verbs import TrackingOptions
from training.tracking.record import load_record
from training.tracking.tracker import importing_mlflow, tracked

OF_EPOCH_1 = EpochRecord(1, 0.1, 0.5, 0.5, 0.5, 0.5, seconds=1)
# SQLAlchemy 2.1 warns of what MLflow's tables use.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


def test_a_run_is_followed_and_its_export_becomes_a_version(
    exported: Run, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(exported.folder, run.folder, ignore=shutil.ignore_patterns("tensorboard"))
    store = tmp_path / "store"
    torch.set_num_threads(read_json(exported.record, "train")["environment"]["num_threads"])  # or bits differ
    dispatch(["train", "--run", str(run.folder), "--tracking", "mlflow", "--mlflow", str(store)], {})
    torch.set_num_threads(1)
    assert run.weights.read_bytes() == exported.weights.read_bytes()
    # As export --aoti would leave it.
    shutil.copytree(run.folder / "fp32", run.folder / "aoti")
    shutil.move(run.folder / "aoti" / "model.pt", run.graph("aoti"))
    # The graphs of these very weights are there already, and to make them again takes half a minute.
    monkeypatch.setattr("training.commands.pipeline.export", lambda run, config: None)
    dispatch(["export", "--run", str(run.folder)], {})
    assert not run.tensorboard.exists()

    with importing_mlflow():
        import mlflow  # noqa: PLC0415
        from mlflow.tracking import MlflowClient  # noqa: PLC0415
    uri = f"sqlite:///{store / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name(config.name)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.id, "FINISHED")
    record = read_json(run.record, "train")
    assert found.data.params == {name: str(value) for name, value in flatten(record["config"]).items()}
    if record["code"] is not None:
        assert found.data.tags["mlflow.source.git.commit"] == record["code"]["commit"]
    for name in ("train_loss", "validation_accuracy", "learning_rate"):
        written = [(each.step, each.value) for each in client.get_metric_history(found.info.run_id, name)]
        assert written == [(each["epoch"], each[name]) for each in record["epochs"]]
    for variant in ("fp32", "int8-static", "aoti"):
        assert record["figures"][variant]["accuracy"] == found.data.metrics[f"test_accuracy.{variant}"]
        report = read_json(run.evaluation(variant), "evaluate")["report"]
        assert found.data.metrics[f"test_accuracy.{variant}"] == report["accuracy"]
        folder = client.download_artifacts(found.info.run_id, f"graphs/{variant}", str(tmp_path))
        assert sha256(Path(folder) / run.graph(variant).name) == sha256(run.graph(variant))
    names = {each.path for each in client.list_artifacts(found.info.run_id)}
    assert {"record.json", "weights.pt", "weights.json", "confusion-matrix-validation.png", "model"} <= names

    version = client.get_model_version(config.name, "1")
    assert version.run_id == found.info.run_id
    assert version.tags["weights_sha256"] == sha256(run.weights)
    mlflow.set_tracking_uri(uri)
    with pytest.warns(UserWarning, match="TorchScript archive"):
        loaded: Any = mlflow.pytorch.load_model(f"models:/{config.name}/1")
    images, _ = load_split(run, "test")
    graph = torch.jit.load(run.graph("fp32"))  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        assert torch.equal(loaded(images[:8]), graph(images[:8]))

    # Exported again, it is one more version of the same model.
    dispatch(["export", "--run", str(run.folder)], {})
    assert client.get_model_version(config.name, "2").run_id == found.info.run_id

    def statuses() -> list[str]:
        return [each.info.status for each in client.search_runs([experiment.experiment_id])]

    def interrupt(_: EpochRecord) -> None:
        assert statuses()[0] == "RUNNING"
        raise KeyboardInterrupt

    # Resumed, it is the same run, also in its first epoch; begun anew, another.
    options = TrackingOptions(("mlflow",), store)
    for resumed, num_runs in ((True, 1), (False, 2), (True, 2)):
        with (
            pytest.raises(KeyboardInterrupt),
            tracked(run, config, options, interrupt, resumed=resumed) as follower,
        ):
            follow(follower, OF_EPOCH_1)
        assert len(statuses()) == num_runs
        assert statuses()[0] == "KILLED"

    # What the store refuses is one line, and the record has it.
    write_json(run.mlflow, {"tracking_uri": uri, "run_id": "another"})
    with pytest.raises(TrackingError, match=r"mlflow\.db refused: .*another") as refused:
        tell(run, config, options, resumed=True)
    assert "\n" not in str(refused.value)
    assert (load_record(run)["status"], load_record(run)["reason"]) == ("failed", str(refused.value))
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match=r"refused: .*file"):
        tell(run, config, TrackingOptions(("mlflow",), tmp_path / "file"), resumed=False)

    # Begun anew, its weights are those of no run there: nothing is registered.
    assert not run.mlflow.exists()
    dispatch(["export", "--run", str(run.folder)], {})
    assert len(client.search_model_versions(f"name='{config.name}'")) == 2


def tell(run: Run, config: Config, options: TrackingOptions, *, resumed: bool) -> None:
    with tracked(run, config, options, resumed=resumed) as follower:
        follow(follower, OF_EPOCH_1)
