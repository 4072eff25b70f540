"""The page of the command line: each verb with its arguments, as `--help` shows them."""

import argparse
from collections.abc import Iterator

from deploy.reference.form import page, table
from service.__main__ import command_parser
from service.config.settings import Settings

INTRODUCTION = """\
`torchgate` runs the gateway and asks a running one. `--url` (or `TORCHGATE_URL`) says which gateway; `--json` prints \
the API's answer for programs; `--reason` goes into the event log. These options may stand before or after the command.

`serve`, `check` and `settings` take each [setting](settings.md) as a flag, and `--help` lists them by group. \
`torchgate settings --json` prints the settings as a document for programs, and `torchgate check --json` what it found.

`torchgate predict` sends the API key in `TORCHGATE_KEY`, if you set one. `source <(torchgate completion bash)` lets \
bash complete commands, options and files; see [completion](#torchgate-completion) for other shells.

[Training](training.md) lists the stages of `torchgate train`. `make help` lists the commands for \
developers."""
COMMON = {"help", "url", "json", "reason"}


def cli_page() -> str:
    """Return the page."""
    return page("Command line", INTRODUCTION, *_verbs(command_parser(), "torchgate"))


def _verbs(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {each.dest: each.help or "" for each in action._choices_actions}
        for verb, sub in action.choices.items():
            if verb not in helps:  # a former name
                continue
            level = "##" if name == "torchgate" else "###"
            yield f"{level} `{name} {verb}`\n\n{_sentence(helps.get(verb, ''))}"
            hidden = COMMON | Settings.model_fields.keys()  # the settings have a page of their own
            rows = [_row(each) for each in sub._actions if each.dest not in hidden and not _is_group(each)]
            if rows:
                yield table(("argument", "meaning"), rows)
            yield from _verbs(sub, f"{name} {verb}")


def _is_group(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _row(action: argparse.Action) -> tuple[str, str]:
    name = max(action.option_strings, key=len, default=action.dest.upper())
    if action.option_strings and action.nargs != 0:
        name += f" {action.metavar or action.dest.upper()}"
    if not action.option_strings and isinstance(action.metavar, str):
        name = action.metavar
    return f"`{name}`", _sentence(action.help or "")


def _sentence(text: str) -> str:
    text = text.replace("%%", "%")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') or not text else '.'}"
