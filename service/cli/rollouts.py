"""The verbs `torchgate rollout ...`."""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from service.cli.gateway import Gateway
from service.cli.tables import rollout_table, rollouts_table


def finite(text: str) -> float:
    """Return a number that JSON can hold."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


MOVES = {
    "pause": "stay at the step; the guards go on looking",
    "resume": "go on with the steps",
    "promote": "give the new version everything now",
    "abort": "give everything back to the stable version",
}
# Option of the command line -> field of the API.
OPTIONS: dict[str, tuple[Callable[[str], float], str]] = {
    "min_requests": (int, "requests that the new version answers in each step"),
    "min_seconds": (finite, "time that each step lasts"),
    "error_rate": (finite, "chance that a version which is no worse is rolled back"),
    "slow_ms": (finite, "a request is slow above this"),
    "slow_tolerance": (finite, "how many times as often as the stable version it may be slow"),
    "shadow_percent": (finite, "share of requests that are copied to compare answers"),
    "min_agreement": (finite, "share of images that both put into one class"),
}


class AddVerb(Protocol):
    """Adds a verb to a group; see service.cli.commands."""

    def __call__(
        self,
        group: Any,
        name: str,
        help_text: str,
        call: Callable[[Gateway, argparse.Namespace], Any],
        show: Callable[[Any], str],
    ) -> argparse.ArgumentParser:
        """Return the verb's parser."""


def add_rollout_verbs(group: Any, add: AddVerb) -> None:
    """Add the verbs to their group."""
    start = add(group, "start", "begin to give a version more and more of the traffic", _start, rollout_table)
    start.add_argument("model")
    start.add_argument("version")
    start.add_argument("--steps", help="percentages that grow, separated by commas; the last is 100")
    for name, (kind, help_text) in OPTIONS.items():
        start.add_argument(f"--{name.replace('_', '-')}", type=kind, help=help_text)
    show = add(group, "show", "how far one has come and what its guards have seen", _show, rollout_table)
    show.add_argument("model")
    show.add_argument("rollout", nargs="?", help="its number; the last one if not given")
    add(group, "list", "the last ones", _list, rollouts_table).add_argument("model")
    for name, help_text in MOVES.items():
        move = add(group, name, help_text, partial(_move, name=name), rollout_table)
        move.add_argument("model")
        move.add_argument("rollout", nargs="?", help="its number; the last one if not given")


def _start(gateway: Gateway, options: argparse.Namespace) -> Any:
    body: dict[str, Any] = {"version": options.version}
    if options.steps is not None:
        body["steps"] = options.steps.split(",")
    body |= {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    return gateway.change("POST", "models", options.model, "rollouts", body=body)


def _list(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.get("models", options.model, "rollouts")["rollouts"]


def _show(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.get("models", options.model, "rollouts", _number(gateway, options))


def _move(gateway: Gateway, options: argparse.Namespace, name: str) -> Any:
    return gateway.change("POST", "models", options.model, "rollouts", _number(gateway, options), name)


def _number(gateway: Gateway, options: argparse.Namespace) -> str:
    """Return the number that was given, or the last one's; the gateway says if there is none."""
    if options.rollout is not None:
        return str(options.rollout)
    rollouts = _list(gateway, options)
    return str(rollouts[0]["id"]) if rollouts else "0"
