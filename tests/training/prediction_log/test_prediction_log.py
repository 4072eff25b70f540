"""What the gateway logs, the trainer reads: figures of each version, and images to learn from."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.domain.backend import ItemError, Ranking, Target
from service.monitoring.prediction_log import folder, parquet
from service.monitoring.prediction_log.log import ParquetLog
from service.telemetry.metrics import Metrics
from tests import images
from training.__main__ import main
from training.commands.arguments import parse, preset
from training.data.sources.folder import folder as image_folder
from training.errors import DataError
from training.options.config import ArchiveConfig, DataConfig
from training.options.presets import build_config
from training.options.verbs import PipelineOptions
from training.prediction_log import records
from training.prediction_log.images import collect_images
from training.prediction_log.records import log_files
from training.prediction_log.report import log_report

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "operate" / "prediction-log.md"
CLASSES = ("cat", "dog")
OLD, NEW = Target("pets", "1.0"), Target("pets", "2.0")


class Writer:
    """A gateway's log; ids are numbers."""

    def __init__(self, path: Path) -> None:
        self.log = ParquetLog(path, 2**26, 1, "image", Metrics())
        self.num_answers = 0

    def __enter__(self) -> "Writer":
        self.log.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def answer(self, target: Target, *ranked: tuple[int, float] | None, seconds: float = 0.01, **more: Any) -> str:
        self.num_answers += 1
        results = [ItemError("bad_image", "") if each is None else Ranking([each]) for each in ranked]
        given = more.get("images") or [b""] * len(ranked)
        self.log.answered(f"{self.num_answers:08x}", target, CLASSES, results, seconds, given)
        return f"{self.num_answers:08x}"

    def label(self, target: Target, answer_id: str, item: int, predicted: str, label: str) -> None:
        self.log.labelled(answer_id, item, target, predicted, label)


def test_both_sides_have_the_same_names() -> None:
    assert tuple(parquet.PREDICTIONS.names) == records.PREDICTION_COLUMNS + records.INPUT_COLUMNS
    assert tuple(parquet.FEEDBACK.names) == records.FEEDBACK_COLUMNS
    assert folder.NAME.pattern == records.FILE_NAME.pattern
    assert folder.NAME.fullmatch(folder.file_name("feedback", 1.5, "0123abcd", 7))


def test_figures_of_each_version(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        for number in range(100):
            writer.answer(OLD, (0, 0.9), None, (1, 0.7), seconds=number / 1000)
        right = writer.answer(NEW, (1, 1.0000001), seconds=0.5)
        wrong = writer.answer(NEW, (1, 0.4), seconds=0.7)
        writer.label(NEW, right, 0, "dog", "dog")
        writer.label(NEW, wrong, 0, "dog", "cat")
        writer.label(NEW, "ffffffff", 0, "dog", "dog")  # its prediction was not sampled
        writer.label(Target("gone", "1.0"), "fffffff0", 0, "dog", "dog")
    gone, old, new = log_report(tmp_path)
    assert (old.model, old.version, old.num_requests, old.num_predictions) == ("pets", "1.0", 100, 200)
    assert old.class_shares == {"cat": 0.5, "dog": 0.5}
    assert old.mean_confidence == pytest.approx(0.8)
    assert (old.confidence_histogram[14], old.confidence_histogram[18]) == (100, 100)
    assert old.latency_seconds == pytest.approx({"p50": 0.0495, "p95": 0.09405, "p99": 0.09801})
    assert old.feedback is None
    assert (new.num_predictions, new.class_shares, sum(new.confidence_histogram)) == (2, {"dog": 1.0}, 2)
    assert new.feedback is not None
    assert (new.feedback.num_labelled, new.feedback.num_correct) == (3, 2)
    assert new.feedback.mean_confidence_correct == pytest.approx(1.0, abs=1e-6)
    assert new.feedback.mean_confidence_wrong == pytest.approx(0.4)
    assert (gone.num_predictions, gone.mean_confidence, gone.latency_seconds) == (0, None, {})
    assert gone.feedback is not None
    assert gone.feedback.mean_confidence_correct is None


def test_rows_that_were_merged_count_once(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.answer(OLD, (0, 0.9))
    (path,) = tmp_path.glob("*.parquet")
    (tmp_path / path.name.replace("-00000001.", "-00000002.")).write_bytes(path.read_bytes())
    assert len(log_files(tmp_path, "predictions")) == 1
    assert log_report(tmp_path)[0].num_predictions == 1
    (tmp_path / path.name.replace("-00000001", "-00000003")).touch()
    with pytest.raises(DataError, match="cannot be read"):
        log_report(tmp_path)


def test_labelled_images_become_a_folder_to_learn_from(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "images"
    tensor = io.BytesIO()
    np.save(tensor, images.pattern(8, 8).transpose(2, 0, 1))
    cats, dogs = ([images.rgb_png(8, 8, seed) for seed in range(first, first + 3)] for first in (0, 10))
    disputed, unlabelled = images.rgb_png(8, 8, 99), images.rgb_png(8, 8, 98)
    with Writer(log) as writer:

        def give(image: bytes, label: str | None, target: Target = OLD) -> None:
            answer_id = writer.answer(target, (0, 0.9), images=[image])
            if label is not None:
                writer.label(target, answer_id, 0, "cat", label)

        for image in cats:
            give(image, "cat")
            give(image, "cat")  # again
        for image in dogs:
            give(image, "dog", NEW)
        give(images.rgb_file("JPEG"), "dog")
        give(tensor.getvalue(), "dog")
        give(disputed, "cat")
        give(disputed, "dog")
        give(disputed, "cat")
        give(unlabelled, None)
        give(b"no image", "cat")
        pair = writer.answer(OLD, (0, 0.9), (1, 0.9), images=[cats[0], unlabelled])
        writer.label(OLD, pair, 0, "cat", "cat")
        give(images.rgb_png(8, 8, 50), "cat", Target("birds", "1.0"))
    with pytest.raises(DataError, match="birds, pets; --name"):
        collect_images(log, target, None)
    for _ in range(2):  # a second time changes nothing
        collected = collect_images(log, target, "pets")
        assert dict(collected.num_images) == {"cat": 3, "dog": 5}
        assert (collected.num_contradictory, collected.num_unusable) == (1, 1)
    assert len([path for path in target.rglob("*") if path.is_file()]) == 8
    learnt = image_folder(target)
    assert (learnt.classes, len(learnt.labels)) == (["cat", "dog"], 8)
    pixels = {np.asarray(learnt.load(index).convert("RGB")).tobytes() for index in range(8)}
    assert images.pattern(8, 8).tobytes() in pixels
    assert np.asarray(Image.open(io.BytesIO(disputed))).tobytes() not in pixels
    assert DataConfig(str(target), 3, 8, 8)


def test_an_image_collected_again_lies_in_one_class(tmp_path: Path) -> None:
    """Old files of the log go; what they said lies in the folder."""
    target = tmp_path / "images"
    moved, kept, disputed = (images.rgb_png(8, 8, seed) for seed in range(3))

    def collect(log: Path, *labels: tuple[bytes, str]) -> dict[str, int]:
        with Writer(log) as writer:
            for image, label in labels:
                answer_id = writer.answer(OLD, (0, 0.9), images=[image])
                writer.label(OLD, answer_id, 0, "cat", label)
        return dict(collect_images(log, target, None).num_images)

    assert collect(tmp_path / "first", (moved, "cat"), (kept, "cat"), (disputed, "cat")) == {"cat": 3}
    for _ in range(2):
        again = collect(tmp_path / "second", (moved, "dog"), (disputed, "dog"), (disputed, "bird"))
        assert again == {"dog": 1}
        found = {path.read_bytes(): path.parent.name for path in target.rglob("*.png")}
        assert found == {moved: "dog", kept: "cat"}
        assert len(list(target.rglob("*.png"))) == 2


def test_the_guides_route_from_the_log_makes_a_release_of_the_model_that_was_logged() -> None:
    lines = GUIDE.read_text().splitlines()
    (line,) = (line for line in lines if "training pipeline" in line and "--data relabelled" in line)
    _, _, command = line.partition("#")[0].partition("training pipeline ")
    args = command.split()
    config = parse("pipeline", PipelineOptions(preset(args), ArchiveConfig()), args).config
    served = build_config("digits", None)
    assert (config.name, config.data.data) == (served.name, "relabelled")
    assert replace(config.data, data=served.data.data) == served.data
    assert config.train == served.train


def test_a_class_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "log") as writer:
        answer_id = writer.answer(OLD, (0, 0.9), images=[images.rgb_png()])
        writer.label(OLD, answer_id, 0, "cat", "../cat")
    with pytest.raises(DataError, match=r"'\.\./cat'"):
        collect_images(tmp_path / "log", tmp_path / "images", None)


def test_the_stage_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["training", "evaluate", *map(str, args)])
        status = main()
        said = capsys.readouterr()
        return status, said.out, said.err

    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    log, report, target = tmp_path / "log", tmp_path / "report.json", tmp_path / "images"
    assert stage("--log", log)[::2] == (2, f"error: --log: {log} is not a folder\n")
    log.mkdir()
    status, _, error = stage("--log", log)
    assert (status, "no rows yet" in error) == (2, True)
    with Writer(log) as writer:
        answer_id = writer.answer(OLD, (0, 0.9), images=[images.rgb_png()])
        writer.label(OLD, answer_id, 0, "cat", "dog")
    status, out, _ = stage("--log", log, "--report", report, "--images", target)
    assert status == 0
    assert "| pets 1.0 | 1 | 0.9000 | 10.0, 10.0, 10.0 | 1 | 0.00% (0.00%-79.35%) |" in out
    assert "dog 1" in out
    (version,) = json.loads(report.read_text())["versions"]
    assert version["feedback"]["num_labelled"] == 1
    assert len(list((target / "dog").iterdir())) == 1
    wrongs: list[list[str | Path]] = [
        [],
        ["--log", log, "--name", "digits"],
        ["--log", log, "--run", tmp_path],
        ["--run", tmp_path, "--images", target],
    ]
    for wrong in wrongs:
        assert stage(*wrong)[0] == 2
