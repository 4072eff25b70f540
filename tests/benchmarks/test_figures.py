"""The small sums behind the lines."""

import pytest

from benchmarks.tasks.overload import growth
from benchmarks.training.int8_accuracy import interval
from benchmarks.tune import FORM, LIMIT, WORKERS, gain, settings_file, shapes


def test_growth_leaves_out_the_start() -> None:
    assert growth([10, 50, 100, 100, 100, 100, 110, 110]) == pytest.approx(1.1)
    assert growth([100]) == 1.0


def test_the_interval_is_students() -> None:
    found = interval([-0.1, 0.0, 0.1])
    assert found["mean"] == pytest.approx(0)
    assert found["high"] == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)  # t of 2 degrees of freedom, from a table
    assert found["low"] == pytest.approx(-found["high"])


def test_shapes_use_every_core_once_or_one_worker_more() -> None:
    assert [(each[WORKERS], each["OMP_NUM_THREADS"]) for each in shapes(4, "grpc")] == [
        ("1", "4"),
        ("2", "2"),
        ("4", "1"),
        ("5", "1"),
    ]
    # Embedded workers take their threads from the gateway's setting, whatever OpenMP's own says.
    assert {each["TORCHGATE_THREADS_PER_WORKER"] for each in shapes(4, "workers")} == {"1", "2", "4"}
    assert [each[WORKERS] for each in shapes(64, "grpc")] == ["1", "2", "4", "8", "16", "32"], "no gateway takes more"


def test_a_gain_is_one_only_beyond_the_spread() -> None:
    assert gain([(100, 130), (110, 120), (105, 125)]) == pytest.approx(125 / 105 - 1)
    assert gain([(100, 130), (121, 120)]) is None
    assert gain([]) is None


def test_the_file_has_one_setting_a_line() -> None:
    text = settings_file({LIMIT: "16", FORM: "frozen"}, "digits 1.0: +3%")
    assert text.splitlines()[1:] == ["# digits 1.0: +3%", f"{FORM}=frozen", f"{LIMIT}=16"]
