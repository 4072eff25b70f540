"""The prediction log through the front door: what is in it, what bounds it, and that it harms nobody."""

import asyncio
import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from service.config.settings import Settings, explain
from service.domain.backend import Ranking, Target
from service.monitoring.prediction_log.folder import LogFolder
from service.monitoring.prediction_log.log import ParquetLog
from service.telemetry.metrics import Metrics
from tests.gateway import Rig, running_gateway

TARGET = Target("digits", "1.0")
CLASSES = ("zero", "one", "two", "three")


@pytest.fixture
def rotates_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a file written after 10 ms instead of a minute."""
    monkeypatch.setattr("service.monitoring.prediction_log.log.ROTATE_SECONDS", 0.01)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return all rows; every file can be read."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"{kind}-*.parquet")):
        with pq.ParquetFile(path) as file:
            found += file.read(use_threads=False).to_pylist()
    return found


def put(log: ParquetLog, number: int, *, images: tuple[bytes, ...] = ()) -> None:
    log.answered(f"{number:032x}", TARGET, CLASSES, [Ranking([(number % 4, 0.5)])], 0.01, images)


def outcome(metrics: Metrics, name: str) -> float:
    value = metrics.registry.get_sample_value("torchgate_prediction_log_records_total", {"outcome": name})
    return value or 0.0


async def written(rig: Rig, num_rows: int) -> None:
    await rig.until("torchgate_prediction_log_records_total", num_rows, outcome="written")


@pytest.mark.anyio
@pytest.mark.usefixtures("rotates_often")
async def test_a_row_for_each_image_and_each_label(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = time.time()
    async with running_gateway(tmp_path, prediction_log_dir=log) as rig:
        form = [("file", (f"{n}.png", body, "image/png")) for n, body in enumerate((b"class:2", b"class:3"))]
        form.insert(1, ("file", ("bad.png", b"reject:bad_image", "image/png")))
        answer = (await rig.client.post("/predict", files=form, params={"top_k": 1})).json()
        alone = (await rig.predict(b"class:1")).json()
        refused = await rig.predict(b"reject:bad_image")
        assert refused.status_code == 400
        given = {"id": answer["id"], "index": 2, "label": "one"}
        assert (await rig.client.post("/feedback", json=given)).status_code == 200
        await written(rig, 4)  # while it runs, not only when it ends
    predictions = rows(log, "predictions")
    assert [(row["id"], row["index"], row["class"]) for row in predictions] == [
        (answer["id"], 0, "two"),
        (answer["id"], 2, "three"),
        (alone["id"], 0, "one"),
    ]
    for row in predictions:
        assert (row["model"], row["version"], row["confidence"]) == ("digits", "1.0", 1.0)
        assert (row["input_sha256"], row["image"]) == (None, None)
        assert started <= row["time"].timestamp() <= time.time()
        assert 0 < row["latency_seconds"] < 20
    assert predictions[0]["latency_seconds"] == predictions[1]["latency_seconds"]
    (label,) = rows(log, "feedback")
    assert label.pop("time").timestamp() >= predictions[0]["time"].timestamp()
    assert label == {
        "id": answer["id"], "index": 2, "model": "digits", "version": "1.0", "predicted": "three", "label": "one",
    }  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("inputs", ["hash", "image"])
async def test_inputs_are_logged_where_they_are_wanted(tmp_path: Path, inputs: str) -> None:
    log = tmp_path / "log"
    async with running_gateway(tmp_path, prediction_log_dir=log, prediction_log_inputs=inputs) as rig:
        await rig.predict(b"class:1")
        await rig.client.post("/predict", content=_bit_by_bit(b"class:2"), headers={"Content-Type": "image/png"})
    for row, image in zip(rows(log, "predictions"), (b"class:1", b"class:2"), strict=True):
        assert row["input_sha256"] == hashlib.sha256(image).hexdigest()
        assert row["image"] == (image if inputs == "image" else None)


async def _bit_by_bit(body: bytes) -> Any:
    for place in range(len(body)):
        yield body[place : place + 1]
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_share_of_the_requests_and_all_feedback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running_gateway(tmp_path, prediction_log_dir=log, prediction_log_sample=0.3) as rig:
        answers = [(await rig.predict(b"class:1")).json()["id"] for _ in range(300)]
        for answer_id in answers[:10]:
            await rig.client.post("/feedback", json={"id": answer_id, "label": "one"})
    logged = [row["id"] for row in rows(log, "predictions")]
    assert 40 <= len(logged) <= 140  # 90 and six standard deviations
    assert logged == [each for each in answers if each in set(logged)]
    assert [row["id"] for row in rows(log, "feedback")] == answers[:10]


@pytest.mark.anyio
@pytest.mark.usefixtures("rotates_often")
async def test_gateways_share_a_folder_and_off_means_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        running_gateway(tmp_path / "a", prediction_log_dir=log) as one,
        running_gateway(tmp_path / "b", prediction_log_dir=log) as other,
        running_gateway(tmp_path / "c") as without,
    ):
        ids = {(await rig.predict(b"class:1")).json()["id"] for rig in (one, other, without)}
        await written(one, 1)
        await written(other, 1)
        assert await without.metric("torchgate_prediction_log_records_total", outcome="written") == 0
    assert len(ids & {row["id"] for row in rows(log, "predictions")}) == 2
    writers = {path.name.split("-")[2] for path in log.glob("*.parquet")}
    assert len(writers) == 2


@pytest.mark.anyio
@pytest.mark.usefixtures("rotates_often")
async def test_a_folder_that_cannot_be_written_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    log.mkdir()
    async with running_gateway(tmp_path, prediction_log_dir=log) as rig:
        log.rmdir()
        log.touch()  # a file in its place
        for _ in range(3):
            assert (await rig.predict(b"class:1")).status_code == 200
        await rig.until("torchgate_prediction_log_records_total", 3, outcome="failed")
        assert (await rig.predict(b"class:1")).status_code == 200
        await rig.until("torchgate_prediction_log_records_total", 4, outcome="failed")
        log.unlink()
        assert (await rig.predict(b"class:1")).status_code == 200
        await written(rig, 1)
    assert len(rows(log, "predictions")) == 1
    said = [each.getMessage() for each in caplog.records if "prediction log" in each.getMessage()]
    assert len(said) == 2, said
    assert "cannot be written" in said[0]
    assert "4 rows were lost" in said[1]


def test_a_full_buffer_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    log = ParquetLog(tmp_path / "log", 2**20, 1, "image", metrics)
    monkeypatch.setattr("service.monitoring.prediction_log.log.MOST_ROWS", 10)
    for number in range(15):
        put(log, number)
    assert outcome(metrics, "dropped") == 5
    monkeypatch.setattr("service.monitoring.prediction_log.log.MOST_ROWS", 100)
    monkeypatch.setattr("service.monitoring.prediction_log.log.MOST_INPUT_BYTES", 1000)
    put(log, 16, images=(b"x" * 900,))
    put(log, 17, images=(b"x" * 200,))
    assert outcome(metrics, "dropped") == 6
    log.start()
    log.close()
    assert outcome(metrics, "written") == 11
    assert [int(row["id"], 16) for row in rows(tmp_path / "log", "predictions")] == [*range(10), 16]


def test_the_log_stops_with_the_gateway(tmp_path: Path) -> None:
    before = threading.active_count()
    log = ParquetLog(tmp_path / "log", 2**20, 1, "none", Metrics())
    log.start()
    put(log, 1)
    log.close()
    assert threading.active_count() == before
    assert len(rows(tmp_path / "log", "predictions")) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prediction_log_sample": 0}, ["TORCHGATE_PREDICTION_LOG_SAMPLE", "greater than 0"]),
        ({"prediction_log_dir": "/proc/version/log"}, ["TORCHGATE_PREDICTION_LOG_DIR=/proc/version/log"]),
        (
            {"prediction_log_dir": "/tmp", "prediction_log_inputs": "image", "prediction_log_max_bytes": 2**24},  # noqa: S108
            ["TORCHGATE_PREDICTION_LOG_MAX_BYTES=16777216", "TORCHGATE_MAX_BODY_BYTES"],
        ),
    ],
)
def test_a_wrong_setting_is_named(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**options)
    for part in named:
        assert part in explain(caught.value)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("service.config.environment.find_spec", lambda name: None)
    assert Settings().prediction_log_dir is None
    with pytest.raises(ValidationError) as caught:
        Settings(prediction_log_dir=tmp_path)
    assert "prediction-log" in explain(caught.value)


def test_records_that_arrive_during_a_write_go_to_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ParquetLog(tmp_path / "log", 2**30, 1, "none", Metrics())
    place = LogFolder.place

    def slowly(self: LogFolder, name: str, data: memoryview) -> None:
        for number in range(10):  # requests do not stop for it
            put(log, number)
        place(self, name, data)

    monkeypatch.setattr(LogFolder, "place", slowly)
    put(log, 10)
    log.labelled("0" * 32, 0, TARGET, "one", "two")
    log._write_buffer()
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "log").glob("*.parquet")) == [
        "feedback",
        "predictions",
    ]
    assert len(rows(tmp_path / "log", "predictions")) == 1
    log._write_buffer()
    assert len(rows(tmp_path / "log", "predictions")) == 21
