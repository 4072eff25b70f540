"""The lines of requests: which trace they belong to, and where the time of slow ones went."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from service.domain.backend import BatchAnswer, Ranking, Target
from service.telemetry.access_log import MOST_SLOW_LINES, AccessLog
from service.telemetry.log_stream import STANDARD_ERROR
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    return [line for line in found if line["logger"] == "service.access"]


async def test_a_line_names_the_trace_that_the_caller_is_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as rig:
        await rig.predict(b"class:1", headers=PARENT)
        await rig.predict(b"class:1", headers={"traceparent": "00-0-0-01"})
    with_trace, without = lines(capsys)
    assert with_trace["trace_id"] == TRACE
    assert "span_id" not in with_trace  # none is recorded
    assert "trace_id" not in without


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_mistake_of_ours_is_logged_with_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_whole: bool
) -> None:
    async def answer_nonsense(*_: object) -> BatchAnswer:
        return BatchAnswer([Ranking([(0, cast("float", np.float32(1)))])], 0.0, 0.0)  # which no JSON can say

    async def pieces() -> AsyncIterator[bytes]:
        yield b"class:1"

    async with running_gateway(tmp_path) as rig:
        vars(rig.backend)["predict"] = answer_nonsense
        content = b"class:1" if is_whole else pieces()
        answer = await rig.client.post("/predict", content=content, headers={"Content-Type": "image/png", **PARENT})
    assert answer.status_code == 500
    (record,) = [record for record in caplog.records if record.message == "unexpected error"]
    assert vars(record)["trace_id"] == TRACE
    assert vars(record)["request_id"] == answer.headers["x-request-id"]


async def slow_lines(
    rig: Rig, capsys: pytest.CaptureFixture[str], headers: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    capsys.readouterr()
    await rig.predict(b"class:1", headers=headers or {})
    return [line for line in lines(capsys) if line["message"] == "slow request"]


async def test_a_slow_request_says_where_its_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path, slow_request_ms=100, log_level="warning") as rig:
        assert await slow_lines(rig, capsys) == []
        rig.backend.slow[Target("digits", "1.0")] = 0.15
        (line,) = await slow_lines(rig, capsys, PARENT)
        assert (line["level"], line["code"], line["trace_id"]) == ("WARNING", 200, TRACE)
        parts = [line[f"{name}_ms"] for name in ("read", "queue", "batch_wait", "decode", "compute", "serialise")]
        assert sum(parts) == pytest.approx(line["duration_ms"], abs=2)
        assert line["batch_wait_ms"] >= 145  # the fake's worker says that it took 3 ms
        assert (line["decode_ms"], line["compute_ms"]) == (1.0, 2.0)
        assert min(parts) >= 0
        # One that waits for a batch.
        rig.backend.slow.clear()
        first = await rig.fill_the_slot()
        waiting = asyncio.create_task(rig.predict(b"class:1", headers={"X-Request-Id": "waiting"}))
        await rig.until_queued(1)
        await asyncio.sleep(0.15)  # the time itself is what is tested
        rig.backend.release()
        await asyncio.gather(first, waiting)
        (line,) = [line for line in lines(capsys) if line["request_id"] == "waiting"]
        assert line["queue_ms"] >= 145
        assert line["batch_wait_ms"] < 100


async def test_a_request_that_failed_late_says_what_it_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_gateway(tmp_path, slow_request_ms=100, log_level="warning") as rig:
        first = await rig.fill_the_slot()
        deadline = {"X-Deadline-Ms": "150"}
        (line,) = await slow_lines(rig, capsys, deadline)
        assert (line["code"], line["error_code"]) == (504, "deadline_exceeded")
        assert line["queue_ms"] >= 145
        assert "batch_wait_ms" not in line
        rig.backend.release()
        await first
        rig.backend.slow[Target("digits", "1.0")] = 0.3
        (line,) = await slow_lines(rig, capsys, deadline)
        assert (line["code"], line["queue_ms"] < 100) == (504, True)
        assert line["batch_wait_ms"] >= 100


async def test_the_last_of_several_batches_is_the_one_that_was_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_gateway(tmp_path, slow_request_ms=100, log_level="warning", max_batch_size=1) as rig:
        first = await rig.fill_the_slot()
        form = [("file", (name, b"class:1", "image/png")) for name in ("1", "2")]
        both = asyncio.create_task(rig.client.post("/predict", files=form, headers={"X-Deadline-Ms": "2000"}))
        await rig.until_queued(2)
        rig.backend.slow[Target("digits", "1.0")] = 0.01
        rig.backend.release()
        await rig.backend.batches_arrived(2)
        rig.backend.stuck.add(Target("digits", "1.0"))  # the second of the two
        assert [(await request).status_code for request in (first, both)] == [200, 504]
        (line,) = [line for line in lines(capsys) if line.get("code") == 504]
        assert line["batch_wait_ms"] > 100
        assert "serialise_ms" not in line
        rig.backend.release()


async def test_a_slow_sender_is_no_slow_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path, slow_request_ms=100) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\nConnection: close\r\n\r\nclass")
        await asyncio.sleep(0.2)  # the time itself is what is tested
        writer.write(b":1")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    (line,) = [line for line in lines(capsys) if line["route"] == "/predict"]
    assert (line["message"], line["duration_ms"] >= 190) == ("request", True)


def ask(log: AccessLog, at: float, seconds: float = 2.0) -> dict[str, Any]:
    """Return the line of a slow request; nothing if there is none."""
    log.request("debug", dict, lambda started, ended: {"read_ms": 0.0, "queue_ms": 2000.0}, at - seconds, at)
    line: dict[str, Any] = json.loads(log._lines.pop()) if log._lines else {}
    return line


async def test_slow_lines_have_a_bound() -> None:
    log = AccessLog("info", 1000, STANDARD_ERROR.write)
    start = log._slow_at
    written = [line for number in range(1000) if (line := ask(log, start + number / 1000))]
    assert MOST_SLOW_LINES <= len(written) <= 2 * MOST_SLOW_LINES
    later = ask(log, start + 3)
    assert sum(line.get("num_left_out", 0) for line in [*written, later]) == 1001 - len(written) - 1
    assert "num_left_out" not in ask(log, start + 4)


async def test_none_is_slow_without_a_bound_or_where_warnings_are_not_shown() -> None:
    assert not ask(AccessLog("info", 0, STANDARD_ERROR.write), 1e9, seconds=1e6)
    assert not ask(AccessLog("error", 1000, STANDARD_ERROR.write), 1e9)
    assert not ask(AccessLog("info", 3000, STANDARD_ERROR.write), 1e9)
