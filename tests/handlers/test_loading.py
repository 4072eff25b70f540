"""What the handler does until it is loaded, and what the archive asks of its files."""

import ast
import inspect
import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from handlers import image_classifier
from handlers.image_classifier import ImageClassifier
from tests import images
from tests.handlers.archives import (
    HANDLER,
    MODULES,
    checked_contract,
    self_check_case,
    toy_contract,
    toy_graph,
    write_model_folder,
)
from tests.handlers.context import FakeContext, load
from training.archive.archive import handler_files


class Counting(ImageClassifier):
    """Remembers the sizes of the batches that it ran."""

    def run(self, batch: npt.NDArray[np.uint8]) -> torch.Tensor:
        self.__dict__.setdefault("sizes", []).append(len(batch))
        return super().run(batch)


def test_warm_up_runs_the_batch_sizes_to_come_several_times(folder: Path) -> None:
    handler = Counting()
    handler.initialize(FakeContext(folder))
    sizes = handler.__dict__["sizes"]
    assert set(sizes) == {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64}
    assert all(sizes.count(size) >= 3 for size in set(sizes))


def test_warm_up_ends_when_its_time_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_classifier, "WARM_UP_SECONDS", 0.0)
    handler = Counting()
    handler.initialize(FakeContext(folder))
    assert handler.__dict__["sizes"] == [1, 1]  # one of warm-up, one of the self-check


def load_with(tmp_path: Path, **changes: Any) -> ImageClassifier:
    return load(write_model_folder(tmp_path, {**checked_contract(), **changes}))


def test_a_model_that_fails_its_self_check_does_not_load(tmp_path: Path) -> None:
    check = checked_contract()["self_check"]
    check["cases"][0]["probabilities"][3] += 0.01
    with pytest.raises(RuntimeError, match=r"Self-check case 0 is off by 0\.01, tolerance 0\.0001"):
        load_with(tmp_path, self_check=check)
    load_with(tmp_path, self_check={**check, "tolerance": 0.011})


def test_the_self_check_goes_through_decoding(tmp_path: Path) -> None:
    check = checked_contract()["self_check"]
    broken = self_check_case(images.truncated_png(), check["cases"][0]["probabilities"])
    with pytest.raises(RuntimeError, match=r"Self-check case 1 cannot be answered: The PNG is cut off"):
        load_with(tmp_path, self_check={**check, "cases": [check["cases"][0], broken]})


def test_the_self_check_wants_as_many_classes(tmp_path: Path) -> None:
    check = {"tolerance": 1, "cases": [self_check_case(images.rgb_png(), [0.5, 0.5])]}
    with pytest.raises(RuntimeError, match="7 classes, expected 2"):
        load_with(tmp_path, self_check=check)


@pytest.mark.parametrize("missing", ["contract.json", "model.pt"])
def test_an_archive_without_all_its_files_is_a_load_error(tmp_path: Path, missing: str) -> None:
    write_model_folder(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(RuntimeError, match="toy cannot be loaded"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_broken_contract_is_a_load_error(tmp_path: Path, content: str) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "contract.json").write_text(content)
    with pytest.raises(RuntimeError, match="toy cannot be loaded"):
        load(tmp_path)


def test_int8_models_stay_on_the_cpu_where_their_kernels_are(tmp_path: Path) -> None:
    handler = load(write_model_folder(tmp_path, toy_contract(precision="int8-dynamic")), gpu_id=0)
    assert handler.device == torch.device("cpu")


def test_a_gpu_is_used_when_one_is_given(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        assert load(write_model_folder(tmp_path), gpu_id=0).device == torch.device("cuda:0")
    else:
        with pytest.raises(RuntimeError, match="CUDA"):
            load(write_model_folder(tmp_path), gpu_id=0)


# What TorchServe and the archive ask of the file itself


def test_the_file_defines_exactly_one_class() -> None:
    classes = inspect.getmembers(
        image_classifier, lambda each: inspect.isclass(each) and each.__module__ == image_classifier.__name__
    )
    assert [name for name, _ in classes] == ["ImageClassifier"]
    assert not hasattr(image_classifier, "handle")  # TorchServe would take it for the entry point


def test_the_files_need_each_other_torch_numpy_and_pillow_only() -> None:
    for file in (HANDLER, *MODULES):
        imported = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(str(node.module).split(".")[0])
        own = {"handlers", *(module.stem for module in MODULES)}
        assert imported - set(sys.stdlib_module_names) <= {"torch", "numpy", "PIL"} | own


def test_training_packs_these_files() -> None:
    assert set(handler_files(HANDLER)) == {HANDLER, *MODULES}


def test_in_an_archive_its_own_modules_are_used_even_where_a_repository_is_on_the_path(folder: Path) -> None:
    for file in (HANDLER, *MODULES):
        shutil.copy(file, folder)
    program = (
        "import image_classifier, sys; print([name for name in sys.modules if name.startswith('handlers')],"
        " image_classifier.decode_item.__code__.co_filename)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HANDLER.parents[1])])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"[] {folder / 'image_decoding.py'}"


def test_a_toy_graph_survives_saving() -> None:
    stream = io.BytesIO()
    torch.jit.save(toy_graph(), stream)
    assert struct.unpack("<I", stream.getvalue()[:4])[0] == 0x04034B50  # a zip file, as TorchScript's are
