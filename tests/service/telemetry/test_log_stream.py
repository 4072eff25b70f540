"""A log that nobody reads holds up no request and no end; what is lost of it is counted."""

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults import recovery
from tests.gateway import GatewayProcess
from tests.torchserve_process import free_ports

DROPPED = "torchgate_log_records_dropped_total"
NUM_PIPELINED = 8


class UnreadLog:
    """A pipe as a gateway's standard error, as small as can be, of which only `read` takes something."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, os.sysconf("SC_PAGESIZE"))
        self._rest = b""
        self._lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Read what is there; return all lines so far."""
        while True:
            try:
                piece = os.read(self._reader, 1 << 20)
            except BlockingIOError:
                break
            if not piece:
                break
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines += map(json.loads, lines)
        return self._lines

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.writer)


class Asker:
    """Sends predictions that are refused, several at once; each has a line of about a kilobyte in the log."""

    def __init__(self, gateway: GatewayProcess, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nX-Request-Id: {'r' * 64}\r\n\r\n"
        self._requests = head.encode() * NUM_PIPELINED
        self.num_answered = 0

    def ask(self) -> None:
        """Return once all are answered."""
        self._socket.sendall(self._requests)
        answers = b""
        while answers.count(b"HTTP/1.1 503") < NUM_PIPELINED or not answers.endswith(b"}"):
            piece = self._socket.recv(1 << 16)
            assert piece, answers
            answers += piece
        self.num_answered += NUM_PIPELINED

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def log() -> Iterator[UnreadLog]:
    with closing(UnreadLog()) as log:
        yield log


@contextmanager
def unread_gateway(tmp_path: Path, log: UnreadLog) -> Iterator[tuple[GatewayProcess, Asker]]:
    """Run a gateway whose store is not there; its path makes the lines long."""
    store = tmp_path.joinpath(*["x" * 200] * 4)
    store.mkdir(parents=True)
    (port,) = free_ports(1)
    gateway = GatewayProcess(TORCHGATE_PORT=str(port), TORCHGATE_MODEL_STORE=str(store))
    gateway.output = log.writer
    gateway.launch()
    try:
        gateway.url = f"http://127.0.0.1:{port}"
        gateway.until_ready(status=503)
        with closing(Asker(gateway, port)) as asker:
            yield gateway, asker
    finally:
        gateway.stop()


def dropped(gateway: GatewayProcess) -> int:
    (line,) = [line for line in gateway.get("/metrics").text.splitlines() if line.startswith(f"{DROPPED} ")]
    return int(float(line.split()[1]))


def test_requests_go_on_and_what_is_lost_is_counted(tmp_path: Path, log: UnreadLog) -> None:
    with unread_gateway(tmp_path, log) as (gateway, asker):
        while not dropped(gateway):
            for _ in range(40):
                asker.ask()
        print(f"{asker.num_answered} requests were answered before the first line was lost")
        assert asker.num_answered > 1000
        deadline = time.monotonic() + 60
        with recovery("the log is read again"):
            while True:  # the next line after a gap tells of it
                asker.ask()
                lines = log.read()
                told = sum(int(line["message"].split()[0]) for line in lines if "missing here" in line["message"])
                if told and told == dropped(gateway):
                    break
                assert time.monotonic() < deadline, f"{told} of {dropped(gateway)}"
        while asker.num_answered != told + len([line for line in log.read() if line["message"] == "request"]):
            assert time.monotonic() < deadline


def test_it_ends_though_nobody_reads_its_last_words(tmp_path: Path, log: UnreadLog) -> None:
    with unread_gateway(tmp_path, log) as (gateway, asker):
        for _ in range(10):  # twenty times what the pipe holds
            asker.ask()
        assert gateway.stop() == -signal.SIGTERM
    assert len(log.read()) < asker.num_answered
