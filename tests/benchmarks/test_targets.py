"""Lines, series and rows from cells that were written by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.report.tables import cell_rows, raw_rows, target_rows
from benchmarks.report.targets import Line, lines
from benchmarks.suite.results import Results, Series, series
from benchmarks.suite.runner import matches, measure, rotated
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Unavailable


class FakeTask(Task):
    """Hands over a figure for each cell; remembers what it was asked for."""

    asked: list[list[str]]

    def __init__(self, key: str, *cells: str, fails_with: Exception | None = None) -> None:
        asked: list[list[str]] = []

        def run(wanted: Sequence[str], put: Put) -> None:
            asked.append(list(wanted))
            for cell in wanted:
                if fails_with is not None:
                    raise fails_with
                put(cell, {"throughput": 1.0, "p50_ms": 1.0, "p99_ms": 1.0, "num_errors": 0})

        super().__init__(key, cells, run)
        object.__setattr__(self, "asked", asked)


def put(results: Results, task: str, cell: str, throughput: float, p99_ms: float = 10, repeats: int = 3) -> None:
    for repeat in range(repeats):
        outcome = {"throughput": throughput + repeat, "p50_ms": p99_ms / 2, "p99_ms": p99_ms + repeat, "num_errors": 0}
        results.put(task, cell, repeat, outcome)


def line(found: list[Line], text: str) -> Line:
    (one,) = [each for each in found if text in each.what]
    return one


def test_what_is_not_measured_is_not_met(tmp_path: Path) -> None:
    found = lines(Results(tmp_path), None)
    assert {each.number for each in found} == {1, 2, 3, 4, 5, 6}
    assert all(each.figure is None and not each.is_met for each in found)


def test_medians_are_held_against_the_best_peer_and_bounds_are_inclusive(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, "workers/small-jpeg", "64", 899, p99_ms=11)  # medians 900 and 12
    put(results, "mosec/small-jpeg", "64", 999, p99_ms=10)  # 1,000 and 11, whose worst repeat is 12
    put(results, "stock/small-jpeg", "64", 5000, p99_ms=1)  # as it comes: no peer that is set as its makers would
    put(results, "litserve/small-jpeg", "64", 100, p99_ms=500)
    found = lines(results, None)
    speed, tail = line(found, "With 64 clients, `workers` answers"), line(found, "With 64 clients, its p99")
    assert speed.figure == pytest.approx(0.9)
    assert speed.is_met
    assert "(mosec)" in speed.what
    assert tail.figure == pytest.approx(12 / 11)
    assert not Line(1, "", 1.1, "<=", 1.0).is_met


def test_the_limit_is_one_shape_and_not_the_luckiest_of_each_repeat(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert results.limit("small-jpeg", "decode") is None
    steady, lucky = "2 x 1, batch 8", "2 x 1, batch 16"
    for repeat, (one, other) in enumerate([(1000, 900), (1010, 1400), (1300, 800)]):
        images = {steady: one, lucky: other}
        results.put("raw/small-jpeg", "limits", repeat, {"forward": images, "decode": images})
    assert results.limit("small-jpeg", "decode") == (steady, Series(median=1010, low=1000, high=1300))
    put(results, "workers/small-jpeg", "64", 706)  # its median is 707
    assert line(lines(results, None), "small model: `workers`").figure == pytest.approx(0.70)
    assert raw_rows(results)[2:] == [f"| small-jpeg | 1010 (1000-1300) | {steady} | 1010 (1000-1300) | {steady} |"]


def test_the_way_through_torchserve_is_the_shorter_one(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, "grpc/small-jpeg", "1", 100, p99_ms=12)  # the median of all is half of the 99 %
    put(results, "grpc/small-jpeg", "direct-1", 200, p99_ms=6)
    assert line(lines(results, None), "The gateway adds").figure == pytest.approx(3.0)
    put(results, "rest/small-jpeg", "1", 150, p99_ms=8)
    assert line(lines(results, None), "The gateway adds").figure == pytest.approx(1.0)


def test_accuracy_counts_in_both_directions(tmp_path: Path) -> None:
    found = lines(Results(tmp_path), {"mean": -0.7})
    assert not line(found, "as accurate").is_met
    assert line(lines(Results(tmp_path), {"mean": -0.2}), "as accurate").is_met


def test_an_error_in_one_repeat_is_an_error(tmp_path: Path) -> None:
    results = Results(tmp_path)
    figures = dict.fromkeys(("good_per_capacity", "refused_p99_ms", "memory_growth", "speed_after"), 1.0)
    for repeat, errors in enumerate([0, 0, 11]):
        outcome = {**figures, "other_errors": errors, "outcome": {"sent": 100_000}}
        results.put("overload-workers/small-jpeg", "overload", repeat, outcome)
    others = line(lines(results, None), "in any other way")
    assert others.figure == pytest.approx(1.1e-4)
    assert not others.is_met


def test_rows_show_spread_and_verdict(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, "mosec/small", "64", 999)
    assert "| mosec | small | 64 clients | 1000 (999-1001) |" in "\n".join(cell_rows(results))
    put(results, "grpc/small", "direct-1", 99)
    assert "| grpc | small | 1 client, past the gateway | 100 (99-101) |" in "\n".join(cell_rows(results))
    rows = target_rows([Line(3, "big", 0.9, ">=", 0.93), Line(4, "edge", None, ">=", 0.5)])
    assert rows[2:] == [
        "| 3 | big | 0.9 | >= 0.93 | FALLS SHORT |",
        "| 4 | edge | not measured | >= 0.5 | FALLS SHORT |",
    ]


def test_series() -> None:
    assert series([3.0, 1.0, 2.0]) == Series(median=2.0, low=1.0, high=3.0)
    assert str(series([3.0, 1.0, 2.0])) == "2 (1-3)"
    assert series([]) is None


def test_a_run_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    results = Results(tmp_path)
    put(results, "mosec/small", "1", 10, repeats=1)
    task = FakeTask("mosec/small", "1", "8")
    measure([task], 2, results)
    assert task.asked == [["8"], ["1", "8"]]
    measure([task], 2, results)
    assert len(task.asked) == 2


def test_only_measures_the_named_cells_again(tmp_path: Path) -> None:
    results = Results(tmp_path)
    one, other = FakeTask("mosec/small", "1", "8"), FakeTask("stock/small", "1", "8")
    measure([one, other], 1, results, only="mosec/small/8")
    measure([one, other], 1, results, only="*/*/8")
    assert one.asked == [["8"], ["8"]]
    assert other.asked == [["8"]]


def test_what_cannot_be_measured_keeps_nothing_else_from_it(tmp_path: Path) -> None:
    results = Results(tmp_path)
    missing = FakeTask("workers/small", "1", fails_with=Unavailable("not built"))
    broken = FakeTask("stock/small", "1", fails_with=RuntimeError("does not answer"))
    task = FakeTask("mosec/small", "1")
    measure([missing, broken, task], 3, results)
    assert [len(each.asked) for each in (missing, broken, task)] == [1, 1, 3]
    assert results.failures == {"workers/small": "not built", "stock/small": "RuntimeError: does not answer"}


def test_every_repeat_has_another_order() -> None:
    tasks = [FakeTask(f"{number}/small", "1") for number in range(7)]
    orders = [[task.key for task in rotated(tasks, repeat)] for repeat in range(5)]
    assert len({order[0] for order in orders}) == 5
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("", True),
        ("mosec", True),
        ("mosec/small", True),
        ("*/small/64", True),
        ("mosec/small/6", False),
        ("grpc", False),
    ],
)
def test_patterns(only: str, expected: bool) -> None:
    assert matches("mosec/small/64", only) is expected
