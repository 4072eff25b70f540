"""The compiled package: made where there is a C++ compiler, served where there is none, a version like the others."""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from handlers.graph_forms import load_graph, load_package
from tests.end_to_end.test_same_answers import check_every_way, classes_of, held_out_batch
from tests.gateway import GatewayProcess
from tests.prometheus import tool
from tests.stack import Trained, gateway_of_workers, gateway_over, train
from tests.torchserve_process import ROOT, TorchServeProcess
from training.artifacts import Run, read_json
from training.data.dataset import load_split
from training.export.export import exported_variants
from training.export.graph_file import load_compiled
from training.int8.quantize import load_variant

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]  # to compile it takes minutes beside other work

VERSION = "1.0-aoti"


@pytest.fixture(scope="module")
def with_package(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The synthetic preset, with a package."""
    tool("g++")
    return train(tmp_path_factory.mktemp("aoti"), "--aoti", timeout_seconds=500)


@pytest.fixture(scope="module")
def packaged_torchserve(with_package: Trained) -> Iterator[TorchServeProcess]:
    with TorchServeProcess(with_package.store) as process:
        yield process


@pytest.fixture(scope="module", params=["grpc", "workers"])
def packaged_gateway(request: pytest.FixtureRequest, with_package: Trained) -> Iterator[GatewayProcess]:
    if request.param == "workers":
        process = gateway_of_workers(with_package.store)
    else:
        process = gateway_over(request.getfixturevalue("packaged_torchserve"), TORCHGATE_BACKEND=request.param)
    with process:
        process.until_every_version_is_ready()
        yield process


def test_it_is_one_more_version_and_answers_like_the_others(
    with_package: Trained, packaged_torchserve: TorchServeProcess, packaged_gateway: GatewayProcess
) -> None:
    run = Run(with_package.run)
    if not httpx.get(f"{packaged_torchserve.management_url}/models", trust_env=False).json()["models"]:
        with gateway_over(packaged_torchserve) as process:
            process.until_every_version_is_ready()
    batch, classes = held_out_batch(run), classes_of(packaged_gateway)
    for version in ("1.0", VERSION):
        check_every_way(run, packaged_torchserve, packaged_gateway, batch, classes, version, 1e-5)


def test_its_contract_says_what_it_is(with_package: Trained) -> None:
    with zipfile.ZipFile(with_package.store / f"synthetic-{VERSION}.mar") as archive:
        assert "model.pt2" in archive.namelist()
        contract = json.loads(archive.read("contract.json"))
    assert (contract["variant"], contract["precision"], contract["compile"]) == ("aoti", "fp32", "aoti")
    assert contract["evaluation"]["accuracy"] >= 0.9
    assert contract["parity"]["max_abs_difference"] <= 1e-5


def test_it_is_compiled_for_what_its_contract_says_and_torch_keeps_to_itself_that_here_is_more(
    with_package: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Run(with_package.run)
    wanted = read_json(run.graph_card("aoti"), "export")["compiled_for"]
    for graph in (load_compiled(run.graph("aoti")), load_package(run.graph("aoti"), wanted)):
        assert graph.get_metadata()["AOTI_CPU_ISA"] == wanted["processor"]
    assert capfd.readouterr() == ("", "")


def test_it_answers_any_batch_like_the_eager_model(with_package: Trained) -> None:
    run = Run(with_package.run)
    images, _ = load_split(run, "test")
    graph, model = load_compiled(run.graph("aoti")), load_variant(run, "fp32")
    with torch.inference_mode():
        for size in (1, 2, 13, 60, 1024):
            batch = images[torch.arange(size) % len(images)]
            torch.testing.assert_close(graph(batch), model(batch), rtol=0, atol=1e-5)


def test_it_is_served_without_a_compiler(with_package: Trained) -> None:
    run = Run(with_package.run)
    code = (
        "import sys, torch; from handlers.graph_forms import load_package;"
        f"graph = load_package(sys.argv[1], {read_json(run.graph_card('aoti'), 'export')['compiled_for']});"
        "print(graph(torch.zeros(3, 1, 12, 12, dtype=torch.uint8)).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.graph("aoti"))],
        cwd=ROOT, env={"PATH": "/nowhere", "CXX": "/nowhere/g++"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) == pytest.approx(3, abs=1e-5)


def test_without_a_compiler_it_is_refused_before_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "pipeline", "--preset", "synthetic", "--aoti"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs"), "--model-store", str(tmp_path / "store")],
        cwd=ROOT, env={**os.environ, "PATH": "/nowhere", "CXX": "/nowhere/g++"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: --aoti needs a C++ compiler, and there is none")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_lesser_processor_s_package_runs_and_a_form_is_not_made_of_it(
    with_package: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = {"compile": "aoti", "compiled_for": {"machine": platform.machine(), "processor": "DEFAULT"}}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    graph = load_graph(Run(with_package.run).graph("aoti"), contract, "frozen", torch.device("cpu"), [])
    assert graph.describe() == [{"form": "portable", "max_batch_size": None}]
    assert graph(torch.zeros(2, 1, 12, 12, dtype=torch.uint8)).shape == (2, 3)
    assert "TORCHGATE_GRAPH_FORM is 'frozen'; a compiled package has no forms" in capsys.readouterr().err


def test_it_is_profiled_like_the_others(with_package: Trained, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "profile", "--run", str(with_package.run), "--variant", "aoti"]
    done = subprocess.run(
        [*command, "--num-batches", "1", "--batch-sizes", "1", "--runs", str(tmp_path / "runs")],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_export_without_it_leaves_it_out_of_the_archives(with_package: Trained, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(with_package.run, tmp_path / "run"))
    assert exported_variants(copied)[-1] == "aoti"
    command = [sys.executable, "-m", "training", "export", "--run", str(copied.folder), "--no-aoti"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert exported_variants(copied) == ["fp32", "int8-dynamic", "int8-static"]
