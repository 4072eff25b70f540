"""The verb `torchgate completion`: a script with which a shell completes verbs, options and files."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish", "tcsh")
HELP = "print a script that completes commands, options and files in a shell"
HOW_TO = """\
For bash: source <(torchgate completion bash), or for every new shell, torchgate completion bash
>~/.local/share/bash-completion/completions/torchgate. For zsh, put the script into a folder of $fpath as _torchgate."""
FILES = {"FILE", "FOLDER", "STORE", "FILE.json.gz"}  # what arguments that name one are called


def add_completion_verb(verbs: Any, command: argparse.ArgumentParser) -> None:
    """Add the verb, which prints what completes `command`."""
    parser = verbs.add_parser("completion", help=HELP, description=f"{HELP}.", epilog=HOW_TO)
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh, fish or tcsh")
    parser.set_defaults(act=lambda options: print(completion_script(command, options.shell)))


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell."""
    import shtab  # noqa: PLC0415 - no other verb needs it

    for action in _actions(parser):
        if action.type is Path or action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks for it
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse tells nobody what a parser has
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                yield from _actions(each)
