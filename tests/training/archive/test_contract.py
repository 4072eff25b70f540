"""contract.json holds what serving needs, and it is true."""

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from training.archive.contract import build_contract, image_limits
from training.artifacts import VARIANTS, Run, Variant, sha256
from training.data.dataset import load_split
from training.data.decode import ImageShape
from training.errors import RunError, SettingError
from training.export.graph_file import load_compiled
from training.options.config import ArchiveConfig

KEYS = [
    "schema_version", "model", "release", "variant", "version", "precision", "compile", "architecture", "input",
    "preprocessing", "images", "classes", "evaluation", "reference", "training", "weights_sha256", "parity", "optimize",
    "self_check",
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_contract_says_what_the_run_found(exported: Run, variant: Variant) -> None:
    contract = build_contract(exported, variant, model="toy", release="3.1")
    assert list(contract) == KEYS
    assert "null" not in json.dumps(contract), "TorchServe's describe leaves nulls out, and the gateway compares"
    assert contract["version"] == ("3.1" if variant == "fp32" else f"3.1-{variant}")
    assert contract["input"] == {"channels": 1, "height": 12, "width": 12}
    assert contract["preprocessing"] == {"fit": "crop", "resample": "bilinear", "background": (0, 0, 0)}
    assert contract["images"]["max_pixels"] == 25_000_000
    assert {"PNG", "JPEG", "WEBP"} < set(contract["images"]["formats"])
    assert contract["classes"] == ["horizontal", "vertical", "square"]
    assert contract["weights_sha256"] == sha256(exported.weights)
    assert contract["training"]["preset"] == "synthetic"
    assert contract["training"]["run"] == exported.id
    assert contract["training"]["torch_version"] == torch.__version__
    evaluation = contract["evaluation"]
    assert (evaluation["split"], evaluation["num_samples"]) == ("test", 60)
    assert evaluation["accuracy"] >= 0.9
    assert {each["class"] for each in evaluation["per_class"]} == set(contract["classes"])
    reference = contract["reference"]
    assert reference["split"] == "validation"
    assert sum(reference["class_prior"]) == pytest.approx(1)
    assert sum(reference["confidence_histogram"]["counts"]) == 30
    json.dumps(contract, allow_nan=False)


def test_which_images_are_served_is_an_option(exported: Run) -> None:
    config = ArchiveConfig(max_image_pixels=1_000_000, image_formats=("png", "JPEG"))
    contract = build_contract(exported, "fp32", model="toy", release="1.0", archive=config)
    assert contract["images"] == {"max_pixels": 1_000_000, "formats": ["PNG", "JPEG"]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ArchiveConfig(max_image_pixels=0), "--max-image-pixels is 0; allowed is 1 to 89478485"),
        (ArchiveConfig(max_image_pixels=10**9), "--max-image-pixels is 1000000000; allowed"),
        (ArchiveConfig(image_formats=("PNG", "EPS")), "--image-formats has EPS; allowed are PNG, JPEG, GIF"),
    ],
)
def test_limits_that_no_handler_keeps_are_refused(config: ArchiveConfig, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        image_limits(config)


def test_a_matrix_of_many_classes_stays_in_the_run(exported: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(exported.folder, tmp_path / "run"))
    evaluation = json.loads(run.evaluation("fp32").read_text())
    assert build_contract(run, "fp32", model="toy", release="1.0")["evaluation"]["confusion_matrix"]
    evaluation["report"]["confusion_matrix"] = [[7] * 1000] * 1000
    run.evaluation("fp32").write_text(json.dumps(evaluation))
    contract = build_contract(run, "fp32", model="toy", release="1.0")
    assert "confusion_matrix" not in contract["evaluation"]
    assert len(json.dumps(contract)) < 20_000


@pytest.mark.parametrize("variant", VARIANTS)
def test_self_checks_hold_for_the_archived_graph_alone_and_in_a_batch(exported: Run, variant: Variant) -> None:
    check = build_contract(exported, variant, model="toy", release="1.0")["self_check"]
    images = []
    for case in check["cases"]:
        with Image.open(io.BytesIO(base64.b64decode(case["image_b64"]))) as image:
            assert image.format == "PNG"
            images.append(ImageShape(1, 12, 12).pixels(image))
    expected = torch.tensor([case["probabilities"] for case in check["cases"]])
    assert len(set(expected.argmax(dim=1).tolist())) == 3
    graph = load_compiled(exported.graph(variant))
    batch = torch.from_numpy(np.stack(images))
    with torch.inference_mode():
        alone = torch.cat([graph(image[None]) for image in batch])
        together = graph(batch)
    assert torch.equal(alone, expected)
    assert float((together - expected).abs().max()) <= check["tolerance"]
    assert check["tolerance"] >= 1e-4


def test_self_checks_are_test_images(exported: Run) -> None:
    images, _ = load_split(exported, "test")
    known = {image.numpy().tobytes() for image in images}
    for case in build_contract(exported, "fp32", model="toy", release="1.0")["self_check"]["cases"]:
        with Image.open(io.BytesIO(base64.b64decode(case["image_b64"]))) as image:
            assert np.asarray(image).tobytes() in known


def test_figures_and_graphs_of_other_weights_are_refused(
    exported: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(tmp_path_factory.mktemp("stale"))
    for name in ("data", "config.json", "weights.pt", "fp32"):
        (run.folder / name).symlink_to(exported.folder / name)
    card = json.loads(exported.weights_card.read_text())
    run.weights_card.write_text(json.dumps(card | {"sha256": "0" * 64}))
    with pytest.raises(RunError, match="run the stage export again"):
        build_contract(run, "fp32", model="toy", release="1.0")
    run.weights_card.unlink()
    with pytest.raises(RunError, match="training train"):
        build_contract(run, "fp32", model="toy", release="1.0")
