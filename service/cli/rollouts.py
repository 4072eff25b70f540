"""The verbs `torchgate rollouts ...`."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from service.cli.gateway import CallFailed, Gateway
from service.cli.tables import rollout_table, rollouts_table
from service.cli.verbs import add_verb, finite

MOVES = {
    "pause": "pause at the present step; the guards keep watching",
    "resume": "continue with the next step",
    "promote": "give the new version all of the traffic now",
    "abort": "return all traffic to the stable version",
}
# Option of the command line -> its type and help; the field of the API has the same name.
OPTIONS: dict[str, tuple[Callable[[str], float], str]] = {
    "min_requests": (int, "least number of judged requests that the new version needs in each step"),
    "min_seconds": (finite, "least duration of each step, in seconds"),
    "error_rate": (finite, "chance that a version is rolled back although it is no worse"),
    "slow_ms": (finite, "a request is slow above this"),
    "slow_tolerance": (finite, "how many times as often as the stable version the new one may be slow"),
    "shadow_percent": (finite, "percentage of requests that are copied to compare answers"),
    "min_agreement": (finite, "least share of images to which both versions give the same class"),
}


def add_rollout_verbs(group: Any) -> None:
    """Add the verbs to their group."""
    help_text = "start a guarded rollout of a version"
    start = add_verb(group, "start", help_text, _start, rollout_table, "model", "version")
    start.add_argument("--steps", help="percentages that grow, separated by commas; the last is 100")
    for name, (kind, help_text) in OPTIONS.items():
        start.add_argument(f"--{name.replace('_', '-')}", type=kind, help=help_text)
    add_verb(group, "list", "list the last rollouts", _list, rollouts_table, "model")
    show = add_verb(group, "show", "show a rollout's progress and its guards' evidence", _show, rollout_table, "model")
    moves = [
        add_verb(group, name, help_text, partial(_move, name=name), rollout_table, "model")
        for name, help_text in MOVES.items()
    ]
    for each in (show, *moves):
        each.add_argument("rollout", nargs="?", help="number of the rollout; the last one if not given")


def _start(gateway: Gateway, options: argparse.Namespace) -> Any:
    body: dict[str, Any] = {"version": options.version}
    if options.steps is not None:
        body["steps"] = options.steps.split(",")
    body |= {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    return gateway.change("POST", options.model, "rollouts", body=body)


def _list(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.get(options.model, "rollouts")["rollouts"]


def _show(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.get(options.model, "rollouts", _number(gateway, options))


def _move(gateway: Gateway, options: argparse.Namespace, name: str) -> Any:
    return gateway.change("POST", options.model, "rollouts", _number(gateway, options), name)


def _number(gateway: Gateway, options: argparse.Namespace) -> str:
    """Return the number that was given, or the last one's; raises CallFailed if there is none."""
    if options.rollout is not None:
        return str(options.rollout)
    rollouts = _list(gateway, options)
    if not rollouts:
        raise CallFailed(
            f"{options.model} has had no rollout yet; start one: torchgate rollouts start {options.model} VERSION"
        )
    return str(rollouts[0]["id"])
