"""Pairs of two checkouts: the sums, the cells, the verdicts, and that each side serves its own sources."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environment.folders import ROOT
from benchmarks.pairs.cells import Cell, cells, is_met, pair_of, table
from benchmarks.pairs.trees import checkout

SMALL, BIG = Cell("grpc", "small-jpeg", 8), Cell("workers", "big", 8)


def turn(throughput: float, p99_ms: float = 10.0, num_errors: int = 0) -> dict[str, Any]:
    return {"throughput": throughput, "p50_ms": p99_ms / 2, "p99_ms": p99_ms, "num_errors": num_errors}


def test_a_pair_is_the_ratio_of_the_means_of_its_turns() -> None:
    pair = pair_of([turn(90), turn(110)], [turn(200), turn(200, p99_ms=30)])
    assert pair["ratios"] == pytest.approx({"throughput": 0.5, "p50_ms": 0.5, "p99_ms": 0.5})
    assert pair["other"]["throughput"] == 200


def test_medians_of_the_pairs_decide() -> None:
    pairs = [pair_of([turn(speed)], [turn(100)]) for speed in (10, 95, 96)]
    assert is_met(SMALL, pairs)
    assert not is_met(BIG, pairs)
    slow = [pair_of([turn(100, p99_ms=12)], [turn(100)])]
    assert not is_met(SMALL, slow)
    assert is_met(BIG, slow)  # nothing is asked of its tail
    assert not is_met(BIG, [pair_of([turn(100, num_errors=1)], [turn(100)])])


def test_the_table_names_every_cell() -> None:
    text = table({SMALL: [pair_of([turn(90)], [turn(100)])], BIG: []})
    assert "| grpc/small-jpeg/8 | 1 | 90 | 100 | 0.900 (0.900-0.900) | >= 0.95 | 10 | 10 | 1.000" in text
    assert "0, 0 | FALLS SHORT |" in text
    assert "| workers/big/8 | 0 |" in text


@pytest.mark.parametrize(
    ("only", "count"), [("", 8), ("grpc", 4), ("*/big", 2), ("workers/small-jpeg/64", 1), ("x", 0)]
)
def test_only_names_cells(only: str, count: int) -> None:
    assert len(cells(only)) == count


def test_another_checkout_is_a_folder_or_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "service").mkdir(parents=True)
    assert checkout(str(tmp_path / "other"))[0] == tmp_path / "other"
    with pytest.raises(SystemExit, match="neither"):
        checkout("no-such-revision")
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode == 0:
        monkeypatch.setattr("benchmarks.pairs.trees.WORK", tmp_path)
        folder, name = checkout("HEAD")
        assert folder == tmp_path / "trees" / name
        assert (folder / "service" / "__main__.py").is_file()
