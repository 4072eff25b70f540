"""The script of docs/how-to/serve/own-model.md archives a network as the gateway and the handler want it."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from service.backends.embedded.archive import unpack
from service.domain.archive import Archive
from service.domain.backend import Target
from service.persistence.archives import copies
from service.persistence.archives.contents import read_contract
from service.persistence.archives.manifest import read_catalog
from service.persistence.archives.trust import AnyManifest
from tests import images
from tests.handlers.context import load
from tests.torchserve_process import ROOT

PAGE = (ROOT / "docs" / "how-to" / "serve" / "own-model.md").read_text()
NETWORK = """
import torch
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 4), torch.nn.Flatten(), torch.nn.LazyLinear(2))
network(torch.zeros(1, 3, 64, 64))
"""


def archive(folder: Path) -> Archive:
    """Run the page's script in a folder that has a network and images, and return what the store lists then."""
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "my_network.py").write_text(NETWORK)
    (folder / "handlers").symlink_to(ROOT / "handlers")
    (folder / "my_samples").mkdir()
    (folder / "my_samples" / "a.png").write_bytes(images.rgb_png())
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (listed,) = read_catalog(folder / "model_store", AnyManifest()).archives
    return listed


def test_the_script_makes_an_archive_that_loads(tmp_path: Path) -> None:
    listed = archive(tmp_path)
    assert listed.target == Target("shapes", "1.0")
    with copies.opened(tmp_path / "model_store" / listed.file) as file:
        copies.check(file, listed.sha256)
        contract = read_contract(file, listed)
        assert contract.classes == ("circle", "square")
        unpacked = unpack(file, tmp_path / "unpacked", listed.target, threading.Event())
    assert unpacked.handler.startswith("image_classifier")
    handler = load(unpacked.folder)  # it passes its self-check here
    (result,) = handler.predict([images.rgb_png()], top_k=1, probabilities=True)["results"]
    assert result["probabilities"] == list(contract.self_check[0].probabilities)
