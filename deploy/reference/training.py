"""The page of training: each stage with its options, as `--help` shows them."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from unittest import mock

from deploy.reference.form import page, table
from training.commands.cli import VERBS, dispatch
from training.commands.signing import KEYS_USAGE

ROOT = Path(__file__).parents[2]
INTRODUCTION = """\
`torchgate train` runs the pipeline, from images to archives in the model store. `torchgate train STAGE` runs one \
stage. `python -m training STAGE` does the same; use it where only the trainer is installed. \
[Train a model](../how-to/train/train.md) shows how to use it.

A default below is the one of the preset `digits`. Stages that take `--run` have the run's own options as defaults. \
Where the values include `None`, it unsets the option. The opposite of a switch such as `--flip` is `--no-flip`."""


def training_page() -> str:
    """Return the page."""
    groups: dict[str, str] = {}
    stages = [_stage(name, groups) for name in VERBS]
    return page("Training", INTRODUCTION, *stages, "## Groups of options", *groups.values())


def _stage(name: str, groups: dict[str, str]) -> str:
    """Return the section of a stage; options that it shares with others are added to the groups."""
    heading = f"## `torchgate train {name}`"
    if name == "keys":
        return f"{heading}\n\n```text\n{KEYS_USAGE}\n```"
    parser = _parser(name)
    own, shared = list[argparse.Action](), list[str]()
    for group in parser._action_groups:
        if group.description is None:
            own += group._group_actions
        elif group._group_actions:
            shared.append(f"[{group.title}](#group-{group.title})")
            title = f"### Group {group.title}\n\n{group.description}"
            groups.setdefault(str(group.title), f"{title}\n\n{_table(group._group_actions)}")
    parts = [heading, str(parser.description), _table(own)]
    return "\n\n".join([*parts, f"Groups: {', '.join(shared)}."] if shared else parts)


def _parser(stage: str) -> argparse.ArgumentParser:
    """Return the parser whose help the stage would print."""
    printing = mock.patch.object(argparse.ArgumentParser, "print_help", autospec=True)
    with printing as asked, suppress(SystemExit):
        dispatch([stage, "--help"], {})
    parser: argparse.ArgumentParser = asked.call_args.args[0]
    return parser


def _table(actions: Sequence[argparse.Action]) -> str:
    return table(("option", "values", "meaning"), (_row(each) for each in actions if each.dest != "help"))


def _row(action: argparse.Action) -> tuple[str, str, str]:
    metavar = str(action.metavar or "")
    values = " ".join(f"`{each}`" for each in metavar.split("|") if each and action.option_strings)
    return (
        " ".join(f"`{each}`" for each in action.option_strings) or f"`{metavar}`",
        f"{values} …" if action.nargs == "*" else values,
        (action.help or "").replace("%%", "%").replace(f"{ROOT}/", ""),
    )
