"""One prediction, traced through a real gateway: the same way for a body in one piece and for one in several.

A uvicorn server runs the gateway's own protocol on asyncio's loop. Behind the batcher stands the fake backend, at the
seam where a real one would be. Counted are files of service/, and calls from a function in one of its files to a
function in another; calls within a file, and into libraries, are not. The trace begins when the connection reads the
request and ends when it has been answered, recorded and logged.
"""

import asyncio
import sys
from asyncio import base_events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import service
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

MOST_FILES = 27
MOST_CALLS = 69
MOST_TURNS = 3  # of the event loop, from the last byte of the body to the hand-over to the backend
# What timers do while the request is on its way; it is no part of it.
BACKGROUND = (
    *("telemetry/event_loop_lag.py", "monitoring/drift_monitor.py:count", "persistence/", "serving/reconciler.py"),
    *("serving/store_watcher.py", "admin/rollout_controller.py", "http/server/server.py"),
    *("http/server/connections.py:_", "process/"),  # other gateways on the machine look who is there
)
ROOT = Path(service.__file__).parent
HEAD = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
WAYS = {
    "in one piece": [HEAD + b"Content-Length: 7\r\n\r\nclass:1"],
    "in parts": [HEAD + b"Content-Length: 7\r\n\r\n", b"cla", b"ss:1"],
    "in chunks": [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\ncla\r\n", b"4\r\nss:1\r\n0\r\n\r\n"],
}


@dataclass
class Trace:
    """What was called in service/ in the thread of the event loop, in order."""

    path: list[str] = field(default_factory=list)  # file:function
    num_calls: int = 0  # from one file to another
    num_turns: int | None = None  # from the last byte to the hand-over
    _num_turns: int = 0
    _seen: set[FrameType] = field(default_factory=set)  # a coroutine is called again whenever it goes on

    @property
    def files(self) -> list[str]:
        """Return the files in the order of their first call."""
        return list(dict.fromkeys(step.split(":")[0] for step in self.path))

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the profiler."""
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename == base_events.__file__:
            self._num_turns += code.co_name == "_run_once"
            return
        if code.co_name == "predict" and code.co_filename.endswith("fake_backend.py"):
            self.num_turns = self._num_turns + 1 if self.num_turns is None else self.num_turns
        if (file := _file_of(frame)) is None or code.co_name in {"<listcomp>", "<genexpr>", "<lambda>"}:
            return
        if code.co_name == "on_message_complete":
            self._num_turns, self.num_turns = 0, None  # the last byte is here
        if frame in self._seen:
            return
        self._seen.add(frame)
        callers = list(_callers(frame))
        step = f"{file}:{code.co_name}"
        if not any(each.startswith(BACKGROUND) for each in (step, *callers)):
            self.path.append(step)
            self.num_calls += bool(callers) and callers[0].split(":")[0] != file

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Trace what the block does."""
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._seen.clear()


def _file_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else None


def _callers(frame: FrameType) -> Iterator[str]:
    """Yield the functions of service/ that led to a call, the nearest first, however they did."""
    back = frame.f_back
    while back is not None and back.f_code.co_filename != base_events.__file__:
        if (file := _file_of(back)) is not None:
            yield f"{file}:{back.f_code.co_name}"
        back = back.f_back


async def _trace(rig: Rig, pieces: list[bytes]) -> Trace:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    trace = Trace()
    with trace.taken():
        for piece in pieces:
            num_reads = trace.path.count("http/server/protocol.py:data_received")
            writer.write(piece)
            await _until(lambda: trace.path.count("http/server/protocol.py:data_received") > num_reads)  # noqa: B023
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        await _until(lambda: "telemetry/access_log.py:_flush" in trace.path)
    writer.close()
    assert head.startswith(b"HTTP/1.1 200 ")
    return trace


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_prediction_goes_one_way(tmp_path: Path, way: str) -> None:
    # No checks of the backend meanwhile, whose calls would be counted, too.
    async with running_gateway(tmp_path, health_interval_seconds=60) as rig:
        await rig.predict(b"class:2", headers={"Host": "t"})  # what is made once is made now
        trace = await _trace(rig, WAYS[way])
    print(f"\n{way}: {len(trace.files)} files, {trace.num_calls} calls between files, {trace.num_turns} turns")
    print("\n".join(trace.path))
    assert trace.path.count("http/predict.py:_predict") == 1
    assert trace.path.count("http/prediction.py:start") == 1
    assert len(trace.files) <= MOST_FILES, trace.files
    assert trace.num_calls <= MOST_CALLS
    assert trace.num_turns is not None
    assert trace.num_turns <= MOST_TURNS


async def test_every_body_takes_the_same_steps(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, health_interval_seconds=60) as rig:
        await rig.predict(b"class:2", headers={"Host": "t"})
        found = []
        for pieces in WAYS.values():
            path = (await _trace(rig, pieces)).path
            steps = path[path.index("http/predict.py:_predict") :]
            found.append([step for step in steps if step.startswith("http/")])
    assert found[0] == found[1] == found[2]
