"""The verbs `torchgate rollouts ...`."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from torchgate_client import Rollout

from service.cli.gateway import CallFailed, Gateway
from service.cli.tables import rollout_table, rollouts_table
from service.cli.verbs import add_verb, finite

MOVES: dict[str, tuple[Callable[..., Rollout], str]] = {
    "pause": (Gateway.pause_rollout, "pause at the present step; the guards keep watching"),
    "resume": (Gateway.resume_rollout, "continue with the steps"),
    "promote": (Gateway.promote_rollout, "give the new version all of the traffic now"),
    "abort": (Gateway.abort_rollout, "return all traffic to the stable version"),
}
# Option of the command line -> its type and help; the field of the API has the same name.
OPTIONS: dict[str, tuple[Callable[[str], float], str]] = {
    "min_requests": (int, "least number of judged requests that the new version needs in each step"),
    "min_seconds": (finite, "least duration of each step, in seconds"),
    "error_rate": (finite, "chance that a version is rolled back although it is no worse"),
    "slow_ms": (finite, "milliseconds above which a request is slow"),
    "slow_tolerance": (finite, "the new version may be slow at most this many times as often as the stable one"),
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
    add_verb(group, "list", "list the last rollouts", lambda g, o: g.rollouts(o.model), rollouts_table, "model")
    show = add_verb(group, "show", "show a rollout's progress and its guards' evidence", _show, rollout_table, "model")
    moves = [
        add_verb(group, name, help_text, partial(_move, move=move), rollout_table, "model")
        for name, (move, help_text) in MOVES.items()
    ]
    for each in (show, *moves):
        each.add_argument("rollout", nargs="?", type=int, help="number of the rollout; the last one if not given")


def _start(gateway: Gateway, options: argparse.Namespace) -> Rollout:
    steps = None if options.steps is None else [_step(each) for each in options.steps.split(",")]
    given = {name: getattr(options, name) for name in OPTIONS}
    return gateway.start_rollout(options.model, options.version, reason=gateway.reason, steps=steps, **given)


def _step(text: str) -> float | str:
    """Return a percentage, or a text that is none: the gateway says what is wrong with it."""
    try:
        return finite(text)
    except (ValueError, argparse.ArgumentTypeError):
        return text


def _show(gateway: Gateway, options: argparse.Namespace) -> Rollout:
    return gateway.rollout(options.model, _number(gateway, options))


def _move(gateway: Gateway, options: argparse.Namespace, move: Callable[..., Rollout]) -> Rollout:
    return move(gateway, options.model, _number(gateway, options), reason=gateway.reason)


def _number(gateway: Gateway, options: argparse.Namespace) -> int:
    """Return the number that was given, or the last one's; raises CallFailed if there is none."""
    if options.rollout is not None:
        return int(options.rollout)
    rollouts = gateway.rollouts(options.model)
    if not rollouts:
        raise CallFailed(
            f"{options.model} has had no rollout yet; start one: torchgate rollouts start {options.model} VERSION"
        )
    return rollouts[0].id
