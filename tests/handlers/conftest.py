"""A toy model in a folder and loaded; a model store with toy archives and one TorchServe that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.image_classifier import ImageClassifier
from tests.handlers.archives import checked_contract, make_archive, write_model_folder
from tests.handlers.context import load
from tests.torchserve_process import TorchServeProcess


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with toy-1.0.mar, toy-1.1.mar, and toy-6.6.mar, which fails its self-check."""
    folder = tmp_path_factory.mktemp("store")
    failing = checked_contract("6.6")
    failing["self_check"]["cases"][0]["probabilities"][0] += 0.5
    for contract in (checked_contract("1.0"), checked_contract("1.1"), failing):
        make_archive(folder, tmp_path_factory.mktemp("archive"), contract)
    return folder


@pytest.fixture(scope="session")
def torchserve(store: Path) -> Iterator[TorchServeProcess]:
    """A TorchServe with toy 1.0 and one worker; for tests that leave it as it is."""
    with TorchServeProcess(store) as server:
        answer = server.register("toy-1.0.mar")
        assert answer.status_code == 200, answer.text
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"), checked_contract())


@pytest.fixture(scope="module")
def handler(folder: Path) -> ImageClassifier:
    return load(folder)
