import pytest

from service.backends.embedded.worker_log import LINES_PER_SECOND, LONGEST_LINE_BYTES, WorkerLog


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


def test_lines_are_put_together_and_told_apart(log: pytest.LogCaptureFixture) -> None:
    output = WorkerLog()
    for part in (b"one\ntw", b"o\n", b"\xff three"):
        output.feed(part)
    output.end()
    assert [record.getMessage() for record in log.records] == ["worker: one", "worker: two", "worker: \ufffd three"]
    assert output.last_line == "\ufffd three"


def test_a_long_line_is_cut(log: pytest.LogCaptureFixture) -> None:
    output = WorkerLog()
    for _ in range(100):
        output.feed(b"x" * 1000)
    output.feed(b"end\nnext\n")
    assert [record.getMessage() for record in log.records] == [f"worker: {'x' * LONGEST_LINE_BYTES}", "worker: next"]


def test_a_flood_is_counted(log: pytest.LogCaptureFixture) -> None:
    output = WorkerLog()
    output.feed(b"line\n" * (LINES_PER_SECOND + 5))
    output.end()
    assert len(log.records) == LINES_PER_SECOND + 1
    assert "5 more lines" in log.records[-1].getMessage()
