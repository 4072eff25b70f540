"""The verb, and its steps: look, put a faulty release into the store, roll it out, watch, clean up."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from torchgate_client import Event, Rollout, TorchgateError, Version, codes

from service.cli.gateway import CallFailed, Gateway
from service.cli.tables import printable
from service.cli.tour.faulty_release import VERSION, FaultyRelease
from service.cli.tour.traffic import Example, Traffic, read_examples
from service.cli.verbs import URL_VARIABLE, add_verb
from service.config.environment import env_name
from service.config.store import ModelStoreSettings

STORE_VARIABLE = env_name("model_store")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PER_SECOND = 10.0
MOST_SECONDS = 100.0  # of traffic, so at most 1,000 requests
LOOK_SECONDS = 1.0
NUM_EVENTS = 20
# Its steps outlast the tour: the faulty version never has more than 5 % of the traffic.
ROLLOUT: dict[str, Any] = {"steps": [5, 25, 100], "min_requests": 100, "min_seconds": 120, "shadow_percent": 5}


def add_tour_verb(verbs: Any) -> None:
    """Add the verb."""
    help_text = "watch how a faulty release is rolled back, in under two minutes"
    tour = add_verb(verbs, "tour", help_text, _tour, _ending)
    default = Path(os.environ.get(STORE_VARIABLE) or ModelStoreSettings.model_fields["model_store"].default)
    store_help = f"folder of the gateway's archives ({STORE_VARIABLE}, now {default})"
    tour.add_argument("--model-store", type=Path, default=default, metavar="FOLDER", help=store_help)
    samples_help = "images to send, named by their class as digit-7.png is"
    tour.add_argument("--samples", type=Path, default=Path("samples"), metavar="FOLDER", help=samples_help)
    tour.add_argument("--clean-up", action="store_true", help="only remove what a killed tour left behind")


def _tour(gateway: Gateway, options: argparse.Namespace) -> Any:
    _require_near(options)
    tell = _teller(sys.stderr if options.json else sys.stdout)
    with _stoppable():
        try:
            return _guided(gateway, options, tell)
        except KeyboardInterrupt as error:
            raise CallFailed("the tour was stopped before the rollback; nothing of it is left") from error


def _guided(gateway: Gateway, options: argparse.Namespace, tell: Callable[[str], None]) -> Any:
    examples = read_examples(options.samples)
    model = gateway.caller.predict(examples[0].image).model
    release = FaultyRelease(options.model_store, model)
    if options.clean_up:
        _clean_up(gateway, model, release)
        return {"model": model, "rollout": None, "event": None, "num_requests": 0}
    if release.is_there():
        raise CallFailed(
            "another tour is running, or was killed. If none is running: torchgate tour --clean-up, then start again"
        )
    stable = _stable(gateway, model)
    original = release.original(stable.version, stable.sha256)
    right = [each for each in examples if _is_right(gateway, model, each)]
    tell(f"{options.url} serves {model} {stable.version}: {len(right)} of {len(examples)} sample images are right.")
    if len(right) * 2 <= len(examples):
        raise CallFailed(f"name images of the classes of {model} with --samples, as digit-7.png is named")
    tell(f"Open {options.url}/ to watch the tour live on the status page.")
    traffic = Traffic(gateway, model, right, PER_SECOND)
    try:
        tell(f"1. Make {VERSION}: a copy of {stable.version} whose class names have moved on by one.")
        release.put(original)
        gateway.register(model, release.file, num_workers=1, reason=gateway.reason)
        tell("   It is loaded. Its self-check passed: the probabilities are right, but their names are wrong.")
        rollout = gateway.start_rollout(model, VERSION, reason=gateway.reason, **ROLLOUT)
        tell(f"2. Start rollout {rollout.id}: {VERSION} gets {rollout.percent:g} % of the traffic.")
        tell(f"3. Send {PER_SECOND:g} requests a second with feedback, for at most {MOST_SECONDS:g} s.")
        rollout = _watched(gateway, traffic, rollout, tell)
        event = _event(gateway, model, rollout)
        tell(f"4. Rolled back at {rollout.ended} after {traffic.num_sent} requests, by event {event.id}:")
        tell(f"   {event.detail or rollout.reason}")
    finally:
        _ignore()
        _clean_up(gateway, model, release)
    tell(f"5. Cleaned up: {VERSION} is unloaded, and its archive is removed.")
    return {"model": model, "rollout": rollout, "event": event, "num_requests": traffic.num_sent}


def _require_near(options: argparse.Namespace) -> None:
    if not options.is_url_given and urlsplit(options.url).hostname not in LOOPBACK:
        raise CallFailed(
            f"{URL_VARIABLE}={options.url} is another machine, and the tour gives wrong answers to 5 % of its callers. "
            f"If nobody relies on that gateway, pass --url {options.url}"
        )


def _teller(stream: Any) -> Callable[[str], None]:
    def tell(text: str) -> None:
        try:
            print(printable(text), file=stream, flush=True)
        except OSError as error:  # the reader, such as `head`, or the terminal has left
            raise CallFailed("nobody reads what the tour prints, so it stopped; nothing of it is left") from error

    return tell


def _stable(gateway: Gateway, model: str) -> Version:
    """Return the version that has all of the traffic; raises CallFailed if none has."""
    for version in gateway.model(model).versions:
        if version.weight == 100 and version.state == "ready":
            return version
    raise CallFailed(f"no ready version of {model} has all the traffic. See: torchgate traffic show {model}")


def _is_right(gateway: Gateway, model: str, example: Example) -> bool:
    return gateway.caller.predict(example.image, model=model).label == example.label


def _watched(gateway: Gateway, traffic: Traffic, rollout: Rollout, tell: Callable[[str], None]) -> Rollout:
    """Return the rollout once it is rolled back; raises CallFailed if it is not."""
    started = time.monotonic()
    while time.monotonic() - started < MOST_SECONDS:
        traffic.send(LOOK_SECONDS)
        rollout = gateway.rollout(traffic.model, rollout.id)
        if rollout.state not in {"running", "paused"}:
            break
        tell(_progress(round(time.monotonic() - started), traffic, rollout))
    if rollout.state == "rolled_back":
        return rollout
    raise CallFailed(
        f"rollout {rollout.id} is {rollout.state} after {traffic.num_sent} requests, of which {traffic.num_failed} "
        f"failed and {VERSION} answered {traffic.num_answers.get(VERSION, 0)}. Check that the gateway asks for no "
        "API keys, has its state's database and is not overloaded: see its log and its status page"
    )


def _progress(seconds: int, traffic: Traffic, rollout: Rollout) -> str:
    """Return one line: the time, the requests, the faulty version's share and answers, the guards' evidence."""
    guards = ", ".join(f"{each.name} {each.evidence:.3g}" for each in rollout.guards)
    failed = f", {traffic.num_failed} failed" if traffic.num_failed else ""
    return (
        f"   {seconds:3} s: {traffic.num_sent} requests{failed}; {VERSION} at {rollout.percent:g} %: "
        f"{traffic.num_wrong.get(VERSION, 0)} of {traffic.num_answers.get(VERSION, 0)} wrong, "
        f"{rollout.step_requests} judged; evidence: {guards or 'none yet'}"
    )


def _event(gateway: Gateway, model: str, rollout: Rollout) -> Event:
    """Return the event of the rollback; raises CallFailed if the log lacks it."""
    for event in gateway.events(model, limit=NUM_EVENTS):
        if (event.action, event.subject) == ("roll_back", str(rollout.id)):
            return event
    raise CallFailed(f"rollout {rollout.id} was rolled back, but no event says so. See: torchgate events {model}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Have a signal to end raise KeyboardInterrupt inside; handlers are as before afterwards."""
    before = {each: signal.signal(each, _stop) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _stop(_: int, __: FrameType | None) -> None:
    _ignore()
    raise KeyboardInterrupt


def _ignore() -> None:
    """Let no signal stop what cleans up; each of its steps has a time limit."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _clean_up(gateway: Gateway, model: str, release: FaultyRelease) -> None:
    """End the rollout, unload the version, remove the archive: each, even if the one before failed."""
    faults = []
    for step in (_abort, _unload, lambda *_: release.remove()):
        try:
            step(gateway, model)
        except (CallFailed, TorchgateError) as error:
            faults.append(str(error))
    if faults:
        told = "; ".join(faults)
        raise CallFailed(f"{VERSION} is not removed: {told}. Once that works, run torchgate tour --clean-up")


def _abort(gateway: Gateway, model: str) -> None:
    for rollout in gateway.rollouts(model):
        if rollout.version == VERSION and rollout.state in {"running", "paused"}:
            gateway.abort_rollout(model, rollout.id, reason=gateway.reason)


def _unload(gateway: Gateway, model: str) -> None:
    with suppress(codes.VersionNotFound):
        gateway.unregister(model, VERSION, reason=gateway.reason)


def _ending(answer: Mapping[str, Any]) -> str:
    return "The tour is over." if answer["rollout"] else f"Nothing of a tour is left with {answer['model']}."
