"""How the operator's verbs are declared, and the options that all of them have."""

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

from service.cli.gateway import Gateway

URL_VARIABLE = "TORCHGATE_URL"
DEFAULT_URL = "http://127.0.0.1:8000"


def add_group(verbs: Any, name: str, help_text: str) -> Any:
    """Add a group of verbs, such as `models`."""
    parser = verbs.add_parser(name, help=help_text, description=f"{help_text}; see `torchgate token`")
    return parser.add_subparsers(dest="subverb", required=True)


def add_verb(
    group: Any,
    name: str,
    help_text: str,
    call: Callable[[Gateway, argparse.Namespace], Any],
    show: Callable[[Any], str],
    *names: str,
) -> argparse.ArgumentParser:
    """Add a verb that takes `names`, calls the gateway with `call`, and prints the answer as `show` returns it."""
    url = os.environ.get(URL_VARIABLE, DEFAULT_URL)
    parser: argparse.ArgumentParser = group.add_parser(name, help=help_text)
    parser.add_argument("--url", default=url, help=f"the gateway ({URL_VARIABLE}, now {url})")
    parser.add_argument("--json", action="store_true", help="print the API's own answer, for programs")
    parser.add_argument("--reason", default="", help="why, for the event log")
    parser.set_defaults(call=call, show=show)
    for each in names:
        parser.add_argument(each)
    return parser


def finite(text: str) -> float:
    """Return a number that JSON can hold."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number
