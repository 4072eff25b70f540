"""What the documentation tells users to type runs as it stands: the blocks of each page in order, and the notebook.

One gateway with workers of its own serves all pages, in a copy of the checkout with a trained model and its second
release. Only the gateway's address is put in the place of localhost:8000.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torchgate_client import Client

from tests.gateway import TOKEN, GatewayProcess
from tests.pages import PAGES, blocks
from tests.stack import Trained, gateway_of_workers
from tests.torchserve_process import ROOT

pytestmark = pytest.mark.timeout(540)

COPIED = ("client", "deploy", "docs", "handlers", "samples", "service", "training")
NOTEBOOK = Path("docs", "tutorials", "torchgate.ipynb")
SECOND = "1.1"
VERSIONS = {"1.0-int8-dynamic", "1.0-int8-static", SECOND}  # beside 1.0, which is never unloaded
BAR = re.compile(r'>(\w+)</span><span style="background:#\w+;width:([0-9.]+)em"></span><span>([0-9.]+)%<')


@dataclass(frozen=True)
class Stack:
    """A checkout with a model store, and the gateway that serves it."""

    checkout: Path
    gateway: GatewayProcess

    def run(self, *command: str, **env: str) -> str:
        """Run a command in the checkout as its user would, and return what it prints."""
        paths = {"PYTHONPATH": f"{self.checkout}:{self.checkout}/client", "CURL_HOME": str(self.checkout)}
        place = {"TORCHGATE_URL": self.gateway.url, "TORCHGATE_ADMIN_TOKEN": TOKEN, "TORCHGATE_PORT": "0"}
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env={**os.environ, **paths, **place, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def begin(self, versions: set[str]) -> None:
        """Give 1.0 all traffic, and nothing else to anybody; load what is missing of these."""
        with Client(self.gateway.url, token=TOKEN) as client:
            for rollout in client.rollouts("digits"):
                if rollout.state in {"running", "paused"}:
                    client.abort_rollout("digits", rollout.id)
            client.set_traffic("digits", {"1.0": 100})
            for label in client.traffic("digits").labels:
                client.delete_label("digits", label)
            for version in versions - {each.version for each in client.model("digits").versions}:
                client.register("digits", f"digits-{version}.mar")


@pytest.fixture(scope="module")
def stack(trained_digits: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    checkout = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copytree(trained_digits.store, checkout / "model_store", ignore=shutil.ignore_patterns("*.db*"))
    shutil.copytree(trained_digits.run, checkout / "runs" / "RUN")
    (checkout / ".venv").symlink_to(sys.prefix)
    (checkout / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")  # else a refused request is no failure
    with gateway_of_workers(checkout / "model_store", TORCHGATE_WORKERS_PER_VERSION="1") as gateway:
        gateway.until_every_version_is_ready()
        made = Stack(checkout, gateway)
        made.run(sys.executable, "-m", "training", "archive", "--run", "runs/RUN")  # the second release
        yield made


def pages_with(language: str) -> list[str]:
    """Return the pages with a block that is run, as parameters of a test."""
    found = {block.page for block in blocks() if block.runs and block.language == language}
    return [page for page in PAGES if page in found]


def script(page: str, language: str, gateway: GatewayProcess, before: str) -> str:
    """Return the blocks of a page that are run, each after a line that says where it is."""
    chosen = [block for block in blocks() if block.page == page and block.runs and block.language == language]
    text = "\n".join(f"{before} {block.place}\n{block.code}" for block in chosen)
    return text.replace("localhost:8000", gateway.url.removeprefix("http://"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("page", pages_with("sh"))
def test_the_shell_blocks_of_a_page_run(stack: Stack, page: str) -> None:
    # Readers of the README load the second release themselves.
    stack.begin(VERSIONS - {SECOND} if page == "README.md" else VERSIONS)
    venv = f"{stack.checkout}/.venv/bin:{os.environ['PATH']}"
    stack.run("bash", "-exo", "pipefail", "-c", script(page, "sh", stack.gateway, ":"), PATH=venv)


@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_blocks_of_a_page_run(stack: Stack, page: str) -> None:
    stack.begin(VERSIONS)
    printed = stack.run(sys.executable, "-W", "error", "-c", script(page, "python", stack.gateway, "#"))
    assert printed.count("\n") >= 2


def test_the_notebook_shows_images_with_their_classes_and_all_else(stack: Stack) -> None:
    stack.begin(VERSIONS)
    with Client(stack.gateway.url, token=TOKEN) as client:
        rollout = client.start_rollout("digits", SECOND, steps=[5, 100], min_seconds=3600)
    cells = json.loads(stack.run(sys.executable, str(ROOT / "tests" / "notebook.py"), str(NOTEBOOK)))
    pictures = [cell["text/html"] for cell in cells if "gateway.predict" in cell["source"] and "text/html" in cell]
    assert len(pictures) == 4  # by path, as an image of Pillow, as an array, and a list
    for shown in pictures[:3]:
        assert rows(shown) == ["7"]
    assert sum(label == str(digit) for digit, label in enumerate(rows(pictures[3]))) >= 9
    assert "image_unrecognized" in pictures[3]
    printed = "".join(cell["printed"] for cell in cells)
    assert re.search(r"queue [0-9.]+ ms, model [0-9.]+ ms, batch of 1", printed)
    assert re.search(r"predicted 7, it was 7: right", printed)
    assert re.search(r"^digits 1\.0 +ready +10 classes", printed, re.MULTILINE)
    assert f"{{'1.0': {95.0}, '{SECOND}': {5.0}}}" in printed
    assert f"rollout {rollout.id}: {SECOND} is running at 5 %" in printed
    assert "ModelNotFound" in printed


def rows(shown: str) -> list[str]:
    """Return the most probable class of each image of an answer, whose picture and bars must be there."""
    found = []
    for row in re.findall(r"<tr>(.*?)</tr>", shown):
        if "<img" not in row:
            continue
        assert ' src="data:image/png;base64,' in row
        bars = re.findall(BAR, row)
        assert len(bars) == 5
        assert [float(width) for _, width, _ in bars] == sorted((float(width) for _, width, _ in bars), reverse=True)
        assert float(bars[0][1]) == pytest.approx(float(bars[0][2]) / 100 * 12, abs=0.02)
        found.append(bars[0][0])
    return found
