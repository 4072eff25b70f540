"""`torchgate check`: looks at everything, prints a line for each thing, and says whether a start would succeed."""

import json
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence

from service.config.places.sources import Sources
from service.config.settings import Settings
from service.doctor import machine, start
from service.doctor.finding import Finding, error

FAILED = 2  # as for `serve`
Read = Callable[[], tuple[Settings, Sources]]


def check(read: Read, environ: MutableMapping[str, str], *, is_json: bool) -> int:
    """Print what was found, faults on standard error; return 2 if the gateway would not start, else 0."""
    findings = list(examine(read, environ))
    print(as_json(findings) if is_json else as_text(findings), flush=True)
    faults = [fault for each in findings for fault in each.faults]
    for fault in faults:
        print(f"torchgate: {fault}", file=sys.stderr)
    return FAILED if faults else 0


def examine(read: Read, environ: MutableMapping[str, str]) -> Iterator[Finding]:
    """Yield what was found; wrong settings leave nothing else to look at."""
    try:
        settings, sources = read()
    except ValueError as fault:
        yield error("settings", str(fault))
        return
    catalog, store = start.model_store(settings)
    found = [
        start.settings_found(settings, sources),
        start.state(settings),
        *store,
        start.token(settings),
        start.port(settings, environ),
        *machine.java(settings, environ),
        machine.processor(settings),
        machine.memory(settings, catalog, environ),
        machine.disk(settings),
        machine.descriptors(settings),
    ]
    for each in found:
        faults = [sources.named(fault) for fault in each.faults]
        yield Finding(each.subject, each.state, sources.named(each.text), sources.named(each.next_step), faults)


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each: its state, what was found, the next step."""
    width = max(len(each.subject) for each in findings)
    return "\n".join(
        f"{each.state:<8} {each.subject:<{width}}  {each.text}{', see below' if each.faults else ''}"
        f"{f'. {each.next_step}' if each.next_step else ''}."
        for each in findings
    )


def as_json(findings: Sequence[Finding]) -> str:
    """Return a document for programs."""
    states = {each.state for each in findings}
    worst = next(state for state in ("error", "warning", "ok") if state in states)
    checks = [
        {"subject": each.subject, "state": each.state, "found": each.text, "next_step": each.next_step}
        | ({"faults": list(each.faults)} if each.faults else {})
        for each in findings
    ]
    return json.dumps({"state": worst, "checks": checks}, indent=2)
