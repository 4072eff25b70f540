"""Every option of every stage is explained by its help and given on a command line by some test."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from training.commands.cli import VERBS, dispatch
from training.commands.usage import USAGE
from training.options.config import ProfileConfig
from training.options.loader import BenchLoaderOptions, PackOptions
from training.options.signing import SignConfig
from training.options.verbs import (
    ArchiveOptions,
    CompareOptions,
    EvaluateOptions,
    ExportOptions,
    GraphOptions,
    PipelineOptions,
    PrepareOptions,
    QuantizeOptions,
    SweepOptions,
    TrainOptions,
)

TESTS = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, type] = {
    "prepare": PrepareOptions,
    "train": TrainOptions,
    "evaluate": EvaluateOptions,
    "quantize": QuantizeOptions,
    "export": ExportOptions,
    "archive": ArchiveOptions,
    "pipeline": PipelineOptions,
    "sign": SignConfig,
    "profile": ProfileConfig,
    "pack": PackOptions,
    "bench-loader": BenchLoaderOptions,
    "graph": GraphOptions,
    "sweep": SweepOptions,
    "compare": CompareOptions,
}


def options_of(kind: Any) -> Iterator[tuple[str, str]]:
    """Give the name that each option has on the command line, and its docstring: empty where it has none."""
    hints, texts = get_type_hints(kind), docstrings(kind)
    for each in fields(kind):
        if is_dataclass(hints[each.name]):
            yield from options_of(hints[each.name])
            continue
        flag = each.metadata.get("flag", "--" + each.name.replace("_", "-"))
        if flag.startswith("--"):
            yield flag, texts.get(each.name, "")


def docstrings(kind: Any) -> dict[str, str]:
    """Return the strings below the fields of a dataclass, by their names."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = str(text.value.value)
    return found


def words(text: str) -> str:
    """Return the text without the lines that it is set in."""
    return " ".join(text.split())


def test_the_overview_has_a_row_for_every_stage() -> None:
    assert OPTIONS.keys() == VERBS.keys() - {"keys"}  # it takes a word and a file, no options
    for stage in VERBS:
        assert re.search(f"\n  {stage} +[a-z]", USAGE)


@pytest.mark.parametrize("stage", OPTIONS)
def test_help_explains_every_option(
    stage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # no text is broken at a hyphen
    with pytest.raises(SystemExit) as stopped:
        dispatch([stage, "--help"], {})
    assert stopped.value.code == 0
    explained = words(capsys.readouterr().out)
    for option, text in options_of(OPTIONS[stage]):
        assert f"{option} " in explained or f"--no-{option[2:]} " in explained, option
        assert text, f"{option} has no docstring"
        assert words(text) in explained, option


def test_every_option_is_given_by_some_test() -> None:
    given = set()
    for path in TESTS.rglob("*.py"):
        if path.name != Path(__file__).name:
            given |= set(re.findall(r"""["'](--[a-z0-9-]+)["']""", path.read_text()))
    options = {option for kind in OPTIONS.values() for option, _ in options_of(kind)}
    assert {option for option in options if not {option, f"--no-{option[2:]}"} & given} == set()
