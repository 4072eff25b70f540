"""How the operator's verbs are declared, and the options that all of them have."""

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from service.cli.gateway import Gateway

URL_VARIABLE = "TORCHGATE_URL"
DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULTS = {"url": DEFAULT_URL, "json": False, "reason": ""}


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all operator's verbs; one that is not given leaves what an earlier parser found."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--url", help=f"the gateway ({URL_VARIABLE}, now {_url()})")
    add("--json", action="store_true", help="print the API's own answer, for programs")
    add("--reason", help="why, for the event log")


def common_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return those that were given, anywhere on the command line."""
    return {name: value for name, value in vars(options).items() if name in DEFAULTS}


def complete(options: argparse.Namespace) -> None:
    """Set those that were not given; `is_url_given` remembers whether the URL was, on the command line."""
    options.is_url_given = "url" in options
    for name, value in {**DEFAULTS, "url": _url()}.items():
        vars(options).setdefault(name, value)


def add_group(verbs: Any, name: str, help_text: str, former_name: str | None = None) -> Any:
    """Add a group of verbs, such as `models`; its former name goes on working."""
    aliases = () if former_name is None else (former_name,)
    description = f"{help_text}; see `torchgate token`"
    parser = verbs.add_parser(name, help=help_text, description=description, aliases=aliases)
    add_common_options(parser)
    return parser.add_subparsers(dest="subverb", required=True)


def add_verb(
    group: Any,
    name: str,
    help_text: str | None,
    call: Callable[[Gateway, argparse.Namespace], Any],
    show: Callable[[Any], str],
    *names: str,
) -> argparse.ArgumentParser:
    """Add a verb that takes `names`, calls the gateway with `call`, and prints the answer as `show` returns it.

    One without a help text is not listed.
    """
    listed = {} if help_text is None else {"help": help_text}
    parser: argparse.ArgumentParser = group.add_parser(name, **listed)
    add_common_options(parser)
    parser.set_defaults(call=call, show=show, status=0)
    for each in names:
        parser.add_argument(each)
    return parser


def _url() -> str:
    return os.environ.get(URL_VARIABLE, DEFAULT_URL)


def finite(text: str) -> float:
    """Return a number that JSON can hold."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number
