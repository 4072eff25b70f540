"""A log gets few lines and a terminal a bar, both with the time that is left."""

import os
import pty
import subprocess
import sys
import termios

import pytest

from training import progress as module
from training.engine.history import EpochRecord
from training.progress import duration, progress
from training.tracking import time_left as tracking
from training.tracking.time_left import time_left

SLOW = """
import time
from training.progress import progress
for each in progress(range(4), "work", "parts"):
    time.sleep(0.4)
"""


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for each in (module, tracking):
            monkeypatch.setattr(each.time, "monotonic", lambda: self.now)


def test_a_log_gets_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    taken = []
    for each in progress(range(10), "measure", "batches"):
        taken.append(each)
        clock.now += 2
    assert taken == list(range(10))
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "measure: 3 of 10 batches, about 14 s left",
        "measure: 6 of 10 batches, about 8 s left",
        "measure: 9 of 10 batches, about 2 s left",
    ]


def test_a_terminal_gets_a_bar() -> None:
    here, terminal = pty.openpty()
    try:
        termios.tcsetwinsize(terminal, (24, 80))  # without lines there is no room for a bar
        command = [sys.executable, "-c", SLOW]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, timeout=60, check=True)
        os.set_blocking(here, False)
        shown = os.read(here, 100_000).decode()
    finally:
        os.close(terminal)
        os.close(here)
    assert done.stdout == b""
    assert "work:" in shown
    assert "/4 [" in shown


def test_a_training_tells_how_long_it_will_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    tell = time_left(4)
    for epoch, seconds in ((1, 2.0), (2, 30.0), (3, 40.0), (4, 40.0)):
        clock.now += seconds
        tell(EpochRecord(epoch, 0.1, 0.5, 0.9, 0.5, 0.9, seconds))
    assert capsys.readouterr().out.splitlines() == [
        "2 of 4 epochs, at most about 60 s left",
        "3 of 4 epochs, at most about 40 s left",
    ]


def test_times_are_as_people_say_them() -> None:
    assert [duration(each) for each in (0.4, 89, 90, 150, 5400)] == ["0 s", "89 s", "2 min", "2 min", "1 h 30 min"]
