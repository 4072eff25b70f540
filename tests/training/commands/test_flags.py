"""Flags are made from dataclasses: every kind of field, what is shown of it, and what is said of a wrong one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from training.commands.flags import MISSING, parse_flags


@dataclass(frozen=True)
class Inner:
    """What lies deeper."""

    depth: int = 1
    """Steps down, at 100 % of the speed."""
    is_dark: bool = False
    """Whether a lamp is needed."""
    rope: float | None = None
    """Metres."""

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"--depth is {self.depth}; allowed is 0 or more")


@dataclass(frozen=True)
class Outer:
    """A descent."""

    cave: Path
    """Where it begins."""
    inner: Inner = field(default_factory=Inner)
    colour: Literal["red", "light-blue"] = "red"
    """Of the rope."""
    lamps: Literal[1, 3] = 1
    """How many."""
    sizes: tuple[int, ...] = (1, 8)
    """Of bags."""
    note: tuple[str, ...] = field(default=(), metadata={"repeated": True})
    """Given once for each."""
    nickname: str | None = field(default=None, metadata={"flag": "--alias"})
    """Another name."""
    people: tuple[Path, ...] = field(default=(), metadata={"flag": "PEOPLE"})
    """Who goes."""


DEFAULT = Outer(Path("deep"), sizes=(2,), inner=Inner(rope=5.0))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], DEFAULT),
        (["--cave", "hole", "--colour=light-blue"], replace(DEFAULT, cave=Path("hole"), colour="light-blue")),
        (["--lamps", "3"], replace(DEFAULT, lamps=3)),
        (["--depth", "4", "--is-dark"], replace(DEFAULT, inner=Inner(4, is_dark=True, rope=5.0))),
        (["--is-dark", "--no-is-dark"], DEFAULT),
        (["--is_dark"], replace(DEFAULT, inner=Inner(is_dark=True, rope=5.0))),
        (["--rope", "None"], replace(DEFAULT, inner=Inner())),
        (["--sizes", "1", "2", "3"], replace(DEFAULT, sizes=(1, 2, 3))),
        (["--sizes"], replace(DEFAULT, sizes=())),
        (["--note", "a", "--note", "b_c"], replace(DEFAULT, note=("a", "b_c"))),
        (["--alias", "None"], DEFAULT),
        (["ann", "--depth", "2", "bob"], replace(DEFAULT, people=(Path("ann"), Path("bob")), inner=Inner(2, rope=5.0))),
    ],
)
def test_arguments_change_the_defaults(args: Sequence[str], expected: Outer) -> None:
    assert parse_flags("descend", DEFAULT, args) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dept", "3"], "--dept: there is no such option. Did you mean --depth?"),
        (["--depth", "three"], "argument --depth: invalid whole number value: 'three'"),
        (["--rope", "long"], "argument --rope: invalid number value: 'long'"),
        (["--colour", "blue"], "argument --colour: 'blue' is none of red, light-blue"),
        (["--lamps", "2"], "argument --lamps: '2' is none of 1, 3"),
        (["--depth", "-1"], "--depth is -1; allowed is 0 or more"),
        (["--speed", "9"], "unrecognized arguments: --speed"),
        (["--dep", "3"], "--dep"),  # no abbreviations
    ],
)
def test_a_wrong_argument_is_named(args: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_flags("descend", DEFAULT, args)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_flag_is_told_before_the_one_that_is_missing_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_flags("descend", Outer(MISSING), ["--caev", "hole"])
    assert stopped.value.code == 2
    assert "Did you mean --cave?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        parse_flags("descend", Outer(MISSING), [])
    assert stopped.value.code == 2
    assert "--cave is missing; `descend --help` explains it" in capsys.readouterr().err


def test_help_shows_docstrings_values_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        parse_flags("descend", replace(DEFAULT, cave=MISSING), ["--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "usage: descend [-h] [--OPTION VALUE ...] [PEOPLE ...]",
        "A descent.",
        "inner: What lies deeper.",
        "--cave PATH Where it begins. Required.",
        "--depth INT Steps down, at 100 % of the speed. Default: 1.",
        "--is-dark, --no-is-dark Whether a lamp is needed. Default: off.",
        "--rope FLOAT|None Metres. Default: 5.0.",
        "--colour red|light-blue Of the rope. Default: red.",
        "--sizes [INT ...] Of bags. Default: 2.",
        "--note TEXT Given once for each. Default: none.",
        "--alias TEXT|None Another name.",
    ):
        assert text in shown
