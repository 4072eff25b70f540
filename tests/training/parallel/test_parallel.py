"""Every strategy trains as one process does: the same losses, the same network, the same exported graph."""

import io
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch

from tests.training.parallel.curves import Curve, curve
from training.artifacts import Run, read_json, write_json
from training.commands.cli import dispatch
from training.engine.train import train
from training.errors import SettingError
from training.export.compile import compile_graph
from training.models.resnet import build_model
from training.models.weights import WeightsCard, load_card, load_graph, save_card, save_weights
from training.options.config import Config, ExportConfig, TrainConfig
from training.options.execution import ExecutionOptions
from training.options.parallel import ParallelOptions, StrategyName, check_training
from training.parallel.build import among, running
from training.parallel.pipelines.stages import cut, num_parts
from training.parallel.single import SingleProcess
from training.parallel.world import World, choose_backend, local_device

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
# In float64: what differs is the order in which numbers are added up. Over these steps float32's rounding grows a
# thousandfold and more, whatever rounds: float32 would show whether training is stable, not whether sums are complete.
TOLERANCE = 1e-9
TWO_PROCESSES = ("ddp-of-0-of-1", "fsdp-of-0-of-1", "model-parallel-of-1-of-1", "rpc-of-1-of-1")
# In a torchrun of its own: a process may use rpc once.
ACCUMULATED = ("rpc-of-1-of-4", "model-parallel-of-1-of-4", "ddp-of-0-of-4", "fsdp-of-0-of-4")
FOUR_PROCESSES = ("hybrid-of-1-of-1", "hybrid-of-1-of-4", "rpc-of-4-of-1")
SHARDS_ACCUMULATED = ("ddp-of-0-of-4", "fsdp-of-0-of-4", "hybrid-of-1-of-4")


def run_command(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"} | environment
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT, env=environment, timeout=220, capture_output=True, text=True, check=False,
    )  # fmt: skip


class Curves:
    """The strategies' first steps; torchrun starts as many processes as each takes, when the first is asked for."""

    def __init__(self, prepared: Run, out: Path) -> None:
        self._prepared, self._out = prepared, out

    def __getitem__(self, setting: str) -> Curve:
        if not (path := self._out / f"{setting}.pt").exists():
            groups = ((2, TWO_PROCESSES), (2, ACCUMULATED), (4, FOUR_PROCESSES))
            ((num_processes, settings),) = (group for group in groups if setting in group[1])
            done = run_command(
                "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes),
                "-m", "tests.training.parallel.curves", self._prepared.folder, self._out, *settings,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return Curve(**torch.load(path))


@pytest.fixture(scope="module")
def curves(prepared: Run, tmp_path_factory: pytest.TempPathFactory) -> Curves:
    return Curves(prepared, tmp_path_factory.mktemp("curves"))


@pytest.fixture(scope="module")
def alone(prepared: Run) -> dict[str, Curve]:
    """One process; in parts of the batch, which batch norm sees one at a time; in parts of both its shards."""
    settings = {"whole": (1, 1), "parts": (4, 1), "parts of shards": (4, 2)}
    return {
        name: curve(prepared, SingleProcess(CPU), accumulation=parts, as_shards=shards)
        for name, (parts, shards) in settings.items()
    }


def like(setting: str) -> str:
    if setting in SHARDS_ACCUMULATED:
        return "parts of shards"
    return "parts" if "-of-4" in setting else "whole"


# hybrid-of-1-of-4 accumulates, too: the others' turn comes in a soak.
@pytest.mark.parametrize(
    "setting",
    [*TWO_PROCESSES, *(pytest.param(each, marks=pytest.mark.soak) for each in ACCUMULATED), *FOUR_PROCESSES],
)
def test_losses_and_network_are_those_of_one_process(curves: Curves, alone: dict[str, Curve], setting: str) -> None:
    found, expected = curves[setting], alone[like(setting)]
    assert len(expected.losses) == 20
    assert expected.losses[-1] < expected.losses[0] / 2, "it learns"
    assert max(expected.norms) > 1, "gradients were clipped"
    assert found.losses == pytest.approx(expected.losses, abs=TOLERANCE)
    assert found.norms == pytest.approx(expected.norms, abs=TOLERANCE)
    assert found.validation[0] == pytest.approx(expected.validation[0], abs=TOLERANCE)
    assert found.validation[1] == expected.validation[1]
    # Weights, statistics of batch norm and momentum, under the same names; and with them training goes on alike.
    torch.testing.assert_close(found.network, expected.network, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found.optimizer["state"], expected.optimizer["state"], rtol=0, atol=TOLERANCE)
    assert found.again == pytest.approx(expected.again, abs=TOLERANCE)


def test_batch_norm_by_parts_is_another_training(alone: dict[str, Curve]) -> None:
    """What the comparison above would miss if the way in which a batch is split made no difference."""
    for one, other in combinations(alone.values(), 2):
        assert max(abs(mine - its) for mine, its in zip(one.losses, other.losses, strict=True)) > 1e-3


@pytest.mark.parametrize("setting", TWO_PROCESSES)
def test_checkpoints_export_to_the_same_graph(
    curves: Curves, alone: dict[str, Curve], exported: Run, tmp_path: Path, setting: str
) -> None:
    card = WeightsCard(**read_json(exported.weights_card, "train"))
    images = torch.randint(0, 256, (16, 1, 12, 12), dtype=torch.uint8)
    graphs = []
    for name, state in (("alone", alone["whole"].network), (setting, curves[setting].network)):
        run = Run(tmp_path / name)
        digest = save_weights(run, {key: value.contiguous() for key, value in plain(state).items()})
        save_card(run, replace(card, sha256=digest))
        buffer = io.BytesIO()
        torch.jit.save(compile_graph(load_graph(run), ExportConfig().compile, images), buffer)
        graphs.append(torch.jit.load(io.BytesIO(buffer.getvalue())))  # type: ignore[no-untyped-call]
    one, other = graphs
    # Torch numbers the classes of a process anew for each trace.
    texts = [re.sub(r"\.___torch_mangle_\d+", "", str(each.inlined_graph)) for each in graphs]
    assert texts[0] == texts[1]
    torch.testing.assert_close(other(images), one(images), rtol=0, atol=1e-6)


def plain(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}


def test_the_command_starts_its_processes(prepared: Run, config: Config, tmp_path: Path) -> None:
    runs = {}
    for name, options in (("single", ()), ("ddp", ("--processes", "2", "--backend", "gloo"))):
        runs[name] = Run(tmp_path / name)
        shutil.copytree(prepared.folder, runs[name].folder)
        done = run_command(
            "training", "train", "--run", runs[name].folder, "--epochs", "2", "--strategy", name, *options
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        # One process speaks for all.
        kept = load_card(runs[name]).epoch  # the better one: which it is depends on the processor
        starts = [line.split(":")[0] for line in done.stdout.splitlines() if not line.endswith(" left")]
        assert starts == ["epoch 1/2", "epoch 2/2", f"kept epoch {kept}"]
    files = {
        name: {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if "tfevents" not in path.name}
        for name, run in runs.items()
    }
    assert files["ddp"] == {each for each in files["ddp"] if "checkpoint" in each} | {
        each for each in files["single"] if "checkpoint" not in each
    }
    load_graph(runs["ddp"])


def test_a_checkpoint_of_one_strategy_is_gone_on_with_by_others(prepared: Run, config: Config, tmp_path: Path) -> None:
    """One process, then shards, then stages take an epoch each."""
    # Batches that come out even are the same for any number of shards.
    options = replace(config.train, epochs=3, batch_size=30, learning_rate=0.001)
    whole, mixed = Run(tmp_path / "whole"), Run(tmp_path / "mixed")
    shutil.copytree(prepared.folder, whole.folder)
    write_json(whole.config, replace(config, train=options))
    train(whole, options, ExecutionOptions(keep_checkpoints=3))
    shutil.copytree(whole.folder, mixed.folder)
    for path in (mixed.history, *mixed.checkpoints.glob("*.pt")):
        path.unlink()
    before = whole
    for epoch, strategy in ((2, ("fsdp",)), (3, ("rpc", "--micro-batches", "1"))):
        name = f"step-{7 * (epoch - 1):08d}.pt"
        left = shutil.copy(before.checkpoints / name, tmp_path / name)
        for path in mixed.checkpoints.glob("*.pt"):
            path.unlink()
        shutil.copy(left, mixed.checkpoints / name)
        done = run_command(
            "training", "train", "--run", mixed.folder, "--resume", "--keep-checkpoints", "3",
            "--processes", "2", "--strategy", *strategy,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"resumed in epoch {epoch}, after step 0" in done.stdout
        before = mixed
    found, expected = (read_json(each.history, "train")["epochs"] for each in (mixed, whole))
    for name in ("train_loss", "validation_loss"):
        # In float32, sums in another order round otherwise, and each step carries it on: 1.5e-4 after the third epoch.
        assert [each[name] for each in found] == pytest.approx([each[name] for each in expected], abs=5e-4)


def test_a_process_that_refuses_is_one_clear_line(prepared: Run, tmp_path: Path) -> None:
    shutil.copytree(prepared.folder, tmp_path / "run")
    done = run_command(
        "training", "train", "--run", tmp_path / "run", "--strategy", "hybrid", "--processes", "2", "--stages", "2",
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: hybrid has 2 processes for 2 stages; allowed is")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 2}, "--processes goes with --strategy ddp"),
        ({"strategy": "ddp", "stages": 2}, "--stages goes with --strategy hybrid"),
        ({"strategy": "ddp", "micro_batches": 2}, "--micro-batches goes with --strategy model-parallel, hybrid, rpc"),
        ({"strategy": "fsdp", "local_batch_norm": True}, "--local-batch-norm goes with --strategy ddp, elastic"),
        ({"strategy": "ddp", "cpu_offload": True}, "--cpu-offload goes with --strategy fsdp"),
        ({"strategy": "ddp", "processes": 0}, "--processes is 0; allowed is 1 or more"),
        ({"strategy": "hybrid", "stages": 1}, "--stages is 1; allowed is 2 or more"),
        ({"strategy": "elastic", "nodes": "3:2"}, "--nodes is '3:2'; allowed is MIN:MAX"),
        ({"strategy": "elastic", "nodes": "1:2"}, "several nodes need a --rendezvous HOST:PORT"),
        ({"strategy": "elastic", "rendezvous": "here"}, "--rendezvous is 'here'; allowed is HOST:PORT"),
        ({"strategy": "elastic", "max_restarts": -1}, "--max-restarts is -1; allowed is 0 or more"),
        ({"strategy": "elastic", "backend": "mpi"}, "--backend is mpi, and mpirun restarts nothing"),
        ({"strategy": "elastic", "join_seconds": 0}, "--join-seconds is 0; allowed is 1 or more"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ParallelOptions(**options)  # type: ignore[arg-type]


def test_data_parallel_says_what_it_needs() -> None:
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs that are missing in this test")
    with (
        pytest.raises(SettingError, match=r"needs --device cuda and at least two of them; .* torch sees"),
        running(ParallelOptions(strategy="data-parallel"), CPU),
    ):
        pass


def test_what_a_cpu_cannot_do_says_what_it_needs() -> None:
    with pytest.raises(SettingError, match="--backend is nccl, which needs GPUs"):
        choose_backend(CPU, "nccl")
    if not torch.distributed.is_mpi_available():
        with pytest.raises(SettingError, match="--backend is mpi, which needs a torch that was compiled"):
            choose_backend(CPU, "mpi")
    with (
        pytest.raises(SettingError, match=r"--cpu-offload moves what is not in use .*: it needs --device cuda"),
        among(ParallelOptions(strategy="fsdp", cpu_offload=True), World(0, 1, CPU)),
    ):
        pass


EARLY_EXIT = TrainConfig(architecture="resnet20-early-exit", epochs=1)


@pytest.mark.parametrize(
    ("train", "device", "strategy", "message"),
    [
        (TrainConfig("resnet20", 1, precision="fp16"), "cpu", "fsdp", "is fsdp, whose processes would have to agree"),
        (EARLY_EXIT, "cpu", "model-parallel", "--model is resnet20-early-exit.*allowed is single or data-parallel"),
        (EARLY_EXIT, "cpu", "ddp", "--model is resnet20-early-exit, in which the place in the batch decides"),
        (TrainConfig("resnet20", 1), "cuda:1", "ddp", "--device is cuda:1, and --strategy ddp takes all GPUs"),
        (TrainConfig("resnet20", 1), "cuda:1", "data-parallel", "allowed is cuda, with CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_a_strategy_cannot_train_is_refused(
    train: TrainConfig, device: str, strategy: StrategyName, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        check_training(train, torch.device(device), ParallelOptions(strategy=strategy))
    check_training(train, torch.device(device), ParallelOptions())


@pytest.mark.parametrize("option", ["--processes", "--join-seconds", "--max-restarts"])
def test_under_torchrun_options_that_start_processes_are_refused(
    prepared: Run, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SettingError, match=f"^{option} is for the command that starts the processes, and torchrun"):
        dispatch(["train", "--run", str(prepared.folder), "--strategy", "elastic", option, "2"], os.environ)


def test_on_gpus_a_process_needs_its_number_and_tensors_of_the_cpu_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="LOCAL_RANK has to be the number of the process on its node"):
        local_device({"RANK": "1"})
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for backend in ("auto", "nccl"):
        assert choose_backend(torch.device("cuda"), backend) == "cpu:gloo,cuda:nccl"


def test_stages_keep_their_names_and_have_their_limits() -> None:
    network = build_model("resnet20", num_classes=4, channels=1)
    names = [name for stage in cut(network, 3) for name in stage.state_dict()]
    assert sorted(names) == sorted(network.state_dict())
    with pytest.raises(SettingError, match="split into 10 stages; allowed is 2 to 9"):
        cut(network, 10)


@pytest.mark.parametrize(("num_images", "wanted", "parts"), [(16, 4, 4), (18, 4, 3), (17, 4, 1), (2, 4, 2)])
def test_micro_batches_are_of_one_size(num_images: int, wanted: int, parts: int) -> None:
    assert num_parts(num_images, wanted) == parts
