"""The verbs `torchgate models|traffic|labels|rollout|events|token ...`: their options, and what each calls."""

import argparse
import dataclasses
import json
import os
import sys
from contextlib import closing

from torchgate_client import Event, TorchgateError, Traffic, Version

from service.cli.gateway import CallFailed, Gateway
from service.cli.predict import add_predict_verb
from service.cli.reports.drift import add_drift_verb
from service.cli.reports.profile import add_profile_verb
from service.cli.rollouts import add_rollout_verbs
from service.cli.tables import events_table, models_table, shadows_table, traffic_table, versions_table
from service.cli.token import find_token, shown_token
from service.cli.tour.verb import add_tour_verb
from service.cli.verbs import add_group, add_verb, complete, finite

INTERRUPTED = 130  # as shells have it


@dataclasses.dataclass(frozen=True)
class VersionOf(Version):
    """A version, and the model that it is of."""

    model: str


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the operator's verbs; each sets `call` and `show` in what it parses."""
    add_predict_verb(verbs)

    models = add_group(verbs, "models", "list, load, scale and unload versions")
    add_verb(models, "list", "list every model and version", lambda g, _: g.models(), models_table)
    add_verb(models, "show", "show the versions of one model", lambda g, o: [g.model(o.model)], models_table, "model")
    register = add_verb(
        models,
        "register",
        "load an archive from the model store and run its self-check",
        _register,
        _version_table,
        "model",
    )
    register.add_argument("file", help="name of the archive, such as digits-1.1.mar")
    register.add_argument("--workers", type=int, help="number of workers; TORCHGATE_WORKERS_PER_VERSION if not given")
    scale = add_verb(
        models, "scale", "change a version's number of workers", _scale, _version_table, "model", "version"
    )
    scale.add_argument("workers", type=int)
    add_verb(models, "unregister", "drain and unload a version without traffic", _unregister, str, "model", "version")
    add_profile_verb(models, is_former=True)

    traffic = add_group(verbs, "traffic", "show and change how requests are divided among versions")
    help_text = "show the present traffic weights"
    add_verb(traffic, "show", help_text, lambda g, o: g.traffic(o.model), traffic_table, "model")
    divide = add_verb(traffic, "set", "set the traffic weights", _set_traffic, traffic_table, "model")
    divide.add_argument(
        "weights",
        nargs="+",
        metavar="VERSION=PERCENT",
        type=_weight,
        help="version and the share of requests that it gets, such as 1.1=10",
    )
    divide.add_argument(
        "--shadow",
        action="append",
        default=[],
        metavar="VERSION=PERCENT",
        type=_weight,
        help="version that gets a copy of this share of requests; none if not given",
    )
    divide.add_argument("--sticky-header", help="header with the routing key; unchanged if not given")
    divide.add_argument("--no-sticky", action="store_true", help="ignore routing keys")
    help_text = "compare the shadows' answers with those that the callers got"
    add_verb(traffic, "shadows", help_text, lambda g, o: g.shadows(o.model), shadows_table, "model")
    add_verb(
        traffic,
        "rollback",
        "return all traffic to the version that last had 100 %%",
        lambda g, o: g.rollback(o.model, reason=g.reason),
        traffic_table,
        "model",
    )

    labels = add_group(verbs, "labels", "point labels at versions")
    add_verb(labels, "list", "list a model's labels", lambda g, o: g.traffic(o.model), traffic_table, "model")
    add_verb(labels, "set", "point a label at a version", _set_label, traffic_table, "model", "label", "version")
    add_verb(labels, "delete", "remove a label", _delete_label, traffic_table, "model", "label")

    add_rollout_verbs(add_group(verbs, "rollouts", "release versions step by step, under guard", "rollout"))

    help_text = "list changes and refusals with actor, time and reason"
    events = add_verb(verbs, "events", help_text, _events, events_table, "model")
    events.add_argument("--limit", type=int, default=20, help="how many; 20 if not given")
    events.add_argument("--before", type=int, help="only events older than this id")

    add_drift_verb(verbs)
    add_profile_verb(verbs)
    add_tour_verb(verbs)

    help_text = "print the admin token that changes need"
    add_verb(verbs, "token", help_text, lambda g, o: shown_token(g, o.url), str)


def run(options: argparse.Namespace) -> int:
    """Call the gateway and print what it answers; return the exit status."""
    complete(options)
    try:
        with closing(Gateway(options.url, find_token(options.url), options.reason)) as gateway:
            answer = options.call(gateway, options)
        text = json.dumps(answer, default=dataclasses.asdict, indent=2) if options.json else options.show(answer)
        if text:
            print(text, flush=True)
    except (CallFailed, TorchgateError) as error:
        print(f"torchgate: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return INTERRUPTED
    return int(options.status)


def _weight(text: str) -> tuple[str, float]:
    version, _, percent = text.rpartition("=")
    try:
        if version:
            return version, finite(percent.removesuffix("%"))
    except (ValueError, argparse.ArgumentTypeError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not VERSION=PERCENT, such as 1.1=10")


def _percentages(given: list[tuple[str, float]]) -> dict[str, float]:
    """Return the percentages by version; raises CallFailed if a version has two."""
    percentages = dict(given)
    if len(percentages) != len(given):
        raise CallFailed(
            f"a version is named twice: {' '.join(f'{version}={percent:g}' for version, percent in given)}"
        )
    return percentages


def _version_table(version: VersionOf) -> str:
    return versions_table([(version.model, version)])


def _register(gateway: Gateway, options: argparse.Namespace) -> VersionOf:
    found = gateway.register(options.model, options.file, num_workers=options.workers, reason=gateway.reason)
    return VersionOf(**vars(found), model=options.model)


def _scale(gateway: Gateway, options: argparse.Namespace) -> VersionOf:
    found = gateway.scale(options.model, options.version, options.workers, reason=gateway.reason)
    return VersionOf(**vars(found), model=options.model)


def _unregister(gateway: Gateway, options: argparse.Namespace) -> str:
    gateway.unregister(options.model, options.version, reason=gateway.reason)
    return f"{options.model} {options.version} is unloaded"


def _set_traffic(gateway: Gateway, options: argparse.Namespace) -> Traffic:
    now = gateway.traffic(options.model)
    header = None if options.no_sticky else options.sticky_header or now.sticky_header
    return gateway.set_traffic(
        options.model,
        _percentages(options.weights),
        shadows=_percentages(options.shadow),
        sticky_header=header or "",
        based_on=now,
        reason=gateway.reason,
    )


def _set_label(gateway: Gateway, options: argparse.Namespace) -> Traffic:
    now = gateway.traffic(options.model)
    return gateway.set_label(options.model, options.label, options.version, based_on=now, reason=gateway.reason)


def _delete_label(gateway: Gateway, options: argparse.Namespace) -> Traffic:
    now = gateway.traffic(options.model)
    return gateway.delete_label(options.model, options.label, based_on=now, reason=gateway.reason)


def _events(gateway: Gateway, options: argparse.Namespace) -> list[Event]:
    return gateway.events(options.model, limit=options.limit, before=options.before)
