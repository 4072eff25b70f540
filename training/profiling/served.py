"""A version as a server has it: in a folder of its own, loaded by the handler that lies beside it there."""

import base64
import importlib
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from training.archive.archive import handler_files
from training.archive.contract import build_contract
from training.artifacts import Run, Variant
from training.errors import ProfileError

MANIFEST = "MAR-INF/MANIFEST.json"
# What is asked of a handler beside what TorchServe asks.
NEEDED = ("contract", "device", "known_pixels", "model", "run")
NO_RELEASE = "0.0"  # of a run that is in no model store


@dataclass(frozen=True)
class Unpacked:
    """A folder with a graph, its contract, the handler and the handler's modules."""

    folder: Path
    graph: str
    handler: str


class Context:
    """What TorchServe hands to a handler, as far as one looks at it."""

    def __init__(self, unpacked: Unpacked) -> None:
        self.model_name = unpacked.folder.name
        self.manifest = {"model": {"serializedFile": unpacked.graph}}
        gpu_id = 0 if torch.cuda.is_available() else None
        self.system_properties = {"model_dir": str(unpacked.folder), "gpu_id": gpu_id}

    def get_request_header(self, idx: int, key: str) -> None:
        """Return what no request here has."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Take in that a request was refused; the answer says so, too."""

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Take in what nobody reads."""


class Served:
    """A handler that has loaded its version."""

    def __init__(self, handler: Any, context: Context) -> None:
        self.handler = handler
        self._context = context

    @property
    def contract(self) -> Mapping[str, Any]:
        """Return what the version says of itself."""
        contract: Mapping[str, Any] = self.handler.contract
        return contract

    def images(self, num_images: int) -> list[bytes]:
        """Return image files: the self-check's, over and over."""
        files = [base64.b64decode(case["image_b64"]) for case in self.contract["self_check"]["cases"]]
        return [files[index % len(files)] for index in range(num_images)]

    def batch(self, num_images: int) -> Any:
        """Return pixels, uint8 [N, C, H, W], in the layout that the graph wants for so many."""
        known = self.handler.known_pixels()
        return self.handler.model.stack([known[index % len(known)] for index in range(num_images)])

    def run(self, batch: Any) -> None:
        """Have the graph answer pixels, and wait for the answer."""
        self.handler.run(batch)

    def answer(self, images: list[bytes]) -> dict[str, float]:
        """Return what the handler says that it spent on one packed request, in milliseconds.

        Raises:
            ProfileError: it refuses the request.
        """
        row = {**{str(index): image for index, image in enumerate(images)}, "options": b"{}"}
        (body,) = self.handler.handle([row], self._context)
        document = json.loads(body)
        if "timings_ms" not in document:
            raise ProfileError(f"the handler does not answer the self-check's images: {body[:300]!r}")
        timings: dict[str, float] = document["timings_ms"]
        return timings


@contextmanager
def served_run(run: Run, variant: Variant, model: str, handler: Path) -> Iterator[Served]:
    """Load what an archive of the run would hold; raises RunError if it was not exported."""
    with tempfile.TemporaryDirectory() as folder:
        contract = build_contract(run, variant, model=model, release=NO_RELEASE)
        (Path(folder) / "contract.json").write_text(json.dumps(contract, allow_nan=False))
        shutil.copy(run.graph(variant), folder)
        for file in handler_files(handler):
            shutil.copy(file, folder)
        with _loaded(Unpacked(Path(folder), run.graph(variant).name, handler.name)) as served:
            yield served


@contextmanager
def served_archive(path: Path) -> Iterator[Served]:
    """Load a .mar file; raises ProfileError if it is none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                model = json.loads(archive.read(MANIFEST))["model"]
                for member in archive.infolist():
                    if PurePosixPath(member.filename).name == member.filename:  # no path: all of ours lie flat
                        archive.extract(member, folder)
            unpacked = Unpacked(Path(folder), model["serializedFile"], model["handler"])
        except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"--archive: {path} is no archive that can be read: {error}") from error
        with _loaded(unpacked) as served:
            yield served


@contextmanager
def _loaded(unpacked: Unpacked) -> Iterator[Served]:
    """Import the handler and its modules from their folder, as TorchServe does, and forget them afterwards."""
    names = [path.stem for path in unpacked.folder.glob("*.py")]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(unpacked.folder))
    try:
        yield _initialized(unpacked)
    finally:
        sys.path.remove(str(unpacked.folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def _initialized(unpacked: Unpacked) -> Served:
    module = importlib.import_module(unpacked.handler.removesuffix(".py"))
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    if len(classes) != 1 or not hasattr(classes[0], "initialize"):
        raise ProfileError(f"{unpacked.handler} has not the one class that TorchServe asks for")
    handler, context = classes[0](), Context(unpacked)
    try:
        handler.initialize(context)
    except RuntimeError as error:  # which is how TorchServe wants to hear of it
        raise ProfileError(f"the version does not load: {error}") from error
    if missing := [name for name in NEEDED if not hasattr(handler, name)]:
        raise ProfileError(f"{unpacked.handler} is no image classifier's: it has no {', '.join(missing)}")
    return Served(handler, context)
