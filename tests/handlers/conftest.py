"""A model store with toy archives and one TorchServe that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.handlers.archives import checked_contract, make_archive
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
