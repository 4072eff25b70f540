"""One synthetic run, taken through all stages once, for the tests that read what a stage leaves."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.stack import Trained
from tests.training.runs import NewRun
from training.artifacts import Run, write_json
from training.data.prepare import prepare
from training.options.config import ArchiveConfig, Config
from training.options.presets import build_config


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, which on a busy machine wait for each other most of the time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def config() -> Config:
    return build_config("synthetic", None)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Run:
    run = Run(tmp_path_factory.mktemp("prepared"))
    write_json(run.config, config)
    prepare(run, config.data)
    return run


@pytest.fixture
def run(prepared: Run, tmp_path: Path) -> Run:
    """Return a prepared run of the test's own."""
    shutil.copytree(prepared.folder, tmp_path / "run")
    return Run(tmp_path / "run")


@pytest.fixture
def new_run(prepared: Run, tmp_path_factory: pytest.TempPathFactory) -> NewRun:
    """Return runs that share what was prepared and nothing else."""

    def make() -> Run:
        run = Run(tmp_path_factory.mktemp("run"))
        (run.folder / "data").symlink_to(prepared.folder / "data")
        shutil.copy(prepared.config, run.config)
        return run

    return make


@pytest.fixture(scope="session")
def exported(trained: Trained) -> Run:
    return Run(trained.run)


@pytest.fixture
def handler(tmp_path: Path) -> Path:
    """Training takes the handler as data: any Python file will do."""
    path = tmp_path / "some_handler.py"
    path.write_text("class Handler: ...\n")
    return path


@pytest.fixture
def archives(tmp_path: Path, handler: Path) -> ArchiveConfig:
    return ArchiveConfig(model_store=tmp_path / "store", handler=handler)
