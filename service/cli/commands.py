"""The verbs `torchgate models|traffic|labels|events ...`: their options, and what each calls."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from service.cli.gateway import CallFailed, Gateway
from service.cli.profiles import add_profile_verb
from service.cli.rollouts import add_rollout_verbs, finite
from service.cli.tables import events_table, models_table, shadows_table, traffic_table

Show = Callable[[Any], str]
URL_VARIABLE = "TORCHGATE_URL"
TOKEN_VARIABLE = "TORCHGATE_ADMIN_TOKEN"  # noqa: S105 - a name
DEFAULT_URL = "http://127.0.0.1:8000"


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the operator's verbs; each sets `call` and `show` in what it parses."""
    models = _group(verbs, "models", "list, load, scale and unload versions")
    _verb(models, "list", "every model and version", lambda g, _: g.get("models")["models"], models_table)
    show = _verb(models, "show", "the versions of one model", _show_model, models_table)
    show.add_argument("model")
    register = _verb(models, "register", "load an archive of the model store and check it", _register, _one_version)
    register.add_argument("model")
    register.add_argument("file", help="name of the archive, such as digits-1.1.mar")
    register.add_argument("--workers", type=int, help="how many; as the gateway's settings say if not given")
    scale = _verb(models, "scale", "give a version another number of workers", _scale, _one_version)
    scale.add_argument("model")
    scale.add_argument("version")
    scale.add_argument("workers", type=int)
    unregister = _verb(models, "unregister", "drain and unload a version without traffic", _unregister, str)
    unregister.add_argument("model")
    unregister.add_argument("version")
    add_profile_verb(models, _verb)

    traffic = _group(verbs, "traffic", "how requests are divided among versions")
    _verb(traffic, "show", "the weights now", lambda g, o: g.get("models", o.model, "traffic")).add_argument("model")
    divide = _verb(traffic, "set", "divide the requests anew", _set_traffic)
    divide.add_argument("model")
    divide.add_argument("weights", nargs="+", metavar="VERSION=PERCENT", type=_weight)
    divide.add_argument(
        "--shadow",
        action="append",
        default=[],
        metavar="VERSION=PERCENT",
        type=_weight,
        help="version that gets a copy of so many requests; none if not given",
    )
    divide.add_argument("--sticky-header", help="header with the routing key; stays as it is if not given")
    divide.add_argument("--no-sticky", action="store_true", help="decide anew for every request")
    shadows = _verb(traffic, "shadows", "what shadows answered, compared", _shadows, shadows_table)
    shadows.add_argument("model")
    back = _verb(traffic, "rollback", "return all traffic to the version that last had 100 %%", _rollback)
    back.add_argument("model")

    labels = _group(verbs, "labels", "names that mean versions")
    put = _verb(labels, "set", "have a label mean a version", _set_label)
    put.add_argument("model")
    put.add_argument("label")
    put.add_argument("version")
    remove = _verb(labels, "delete", "remove a label", _delete_label)
    remove.add_argument("model")
    remove.add_argument("label")

    add_rollout_verbs(_group(verbs, "rollout", "guarded rollouts: more and more of the traffic"), _verb)

    events = verbs.add_parser("events", help="what was changed or refused, by whom, when and why", parents=[_common()])
    events.add_argument("model")
    events.add_argument("--limit", type=int, default=20)
    events.add_argument("--before", type=int, help="only events older than this id")
    events.set_defaults(call=_events, show=events_table)


def run(options: argparse.Namespace) -> int:
    """Call the gateway and print what it answers; return the exit status."""
    try:
        with Gateway(options.url, os.environ.get(TOKEN_VARIABLE), options.reason) as gateway:
            answer = options.call(gateway, options)
    except CallFailed as error:
        print(f"torchgate: {error}", file=sys.stderr)
        return 1
    try:
        print(json.dumps(answer, indent=2) if options.json else options.show(answer), flush=True)
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    url = os.environ.get(URL_VARIABLE, DEFAULT_URL)
    common.add_argument("--url", default=url, help=f"the gateway ({URL_VARIABLE}, now {url})")
    common.add_argument("--json", action="store_true", help="print the API's own answer, for programs")
    common.add_argument("--reason", default="", help="why, for the event log")
    return common


def _group(verbs: Any, name: str, help_text: str) -> Any:
    parser = verbs.add_parser(name, help=help_text, description=f"{help_text}; {TOKEN_VARIABLE} is sent if it is set")
    return parser.add_subparsers(dest="subverb", required=True)


def _verb(
    group: Any,
    name: str,
    help_text: str,
    call: Callable[[Gateway, argparse.Namespace], Any],
    show: Show = traffic_table,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = group.add_parser(name, help=help_text, parents=[_common()])
    parser.set_defaults(call=call, show=show)
    return parser


def _weight(text: str) -> tuple[str, float]:
    version, _, percent = text.rpartition("=")
    try:
        number = finite(percent.removesuffix("%")) if version else None
    except (ValueError, argparse.ArgumentTypeError):
        number = None
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not VERSION=PERCENT, such as 1.1=10")
    return version, number


def _each_once(given: list[tuple[str, float]]) -> dict[str, float]:
    """Return the percentages by version; of two for one, nobody can tell which is meant."""
    percentages = dict(given)
    if len(percentages) != len(given):
        raise CallFailed(
            f"a version is named twice: {' '.join(f'{version}={percent:g}' for version, percent in given)}"
        )
    return percentages


def _one_version(document: Mapping[str, Any]) -> str:
    return models_table([{"model": document["model"], "versions": [document]}])


def _show_model(gateway: Gateway, options: argparse.Namespace) -> Any:
    return [gateway.get("models", options.model)]


def _register(gateway: Gateway, options: argparse.Namespace) -> Any:
    body = {"file": options.file, "num_workers": options.workers}
    return {"model": options.model, **gateway.change("POST", "models", options.model, "versions", body=body)}


def _scale(gateway: Gateway, options: argparse.Namespace) -> Any:
    path = ("models", options.model, "versions", options.version)
    return {"model": options.model, **gateway.change("PATCH", *path, body={"num_workers": options.workers})}


def _unregister(gateway: Gateway, options: argparse.Namespace) -> Any:
    gateway.change("DELETE", "models", options.model, "versions", options.version)
    return f"{options.model} {options.version} is unloaded"


def _set_traffic(gateway: Gateway, options: argparse.Namespace) -> Any:
    now, etag = gateway.traffic(options.model)
    header = None if options.no_sticky else options.sticky_header or now["sticky_header"]
    body = {"weights": _each_once(options.weights), "sticky_header": header, "shadows": _each_once(options.shadow)}
    return gateway.change("PUT", "models", options.model, "traffic", body=body, based_on=etag)


def _shadows(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.get("models", options.model, "shadows")["shadows"]


def _rollback(gateway: Gateway, options: argparse.Namespace) -> Any:
    return gateway.change("POST", "models", options.model, "rollback")


def _set_label(gateway: Gateway, options: argparse.Namespace) -> Any:
    path, (_, etag) = ("models", options.model, "labels", options.label), gateway.traffic(options.model)
    return gateway.change("PUT", *path, body={"version": options.version}, based_on=etag)


def _delete_label(gateway: Gateway, options: argparse.Namespace) -> Any:
    path, (_, etag) = ("models", options.model, "labels", options.label), gateway.traffic(options.model)
    return gateway.change("DELETE", *path, based_on=etag)


def _events(gateway: Gateway, options: argparse.Namespace) -> Any:
    query = {"limit": options.limit, "before": options.before}
    return gateway.get("models", options.model, "events", **query)["events"]
