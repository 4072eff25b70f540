import pytest

from service.workers.output import LINES_PER_SECOND, LONGEST_LINE_BYTES, Output


def test_lines_are_put_together_and_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    output = Output()
    for part in (b"one\ntw", b"o\n", b"\xff three"):
        output.feed(part)
    output.end()
    assert caplog.messages == ["worker: one", "worker: two", "worker: \ufffd three"]
    assert output.last_line == "\ufffd three"


def test_a_long_line_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    output = Output()
    for _ in range(100):
        output.feed(b"x" * 1000)
    output.feed(b"end\nnext\n")
    assert caplog.messages == [f"worker: {'x' * LONGEST_LINE_BYTES}", "worker: next"]


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    output = Output()
    output.feed(b"line\n" * (LINES_PER_SECOND + 5))
    output.end()
    assert len(caplog.messages) == LINES_PER_SECOND + 1
    assert "5 more lines" in caplog.messages[-1]
