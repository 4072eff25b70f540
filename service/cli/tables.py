"""Answers of the API as tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchgate_client import Event, Model, Rollout, Shadow, Traffic, Version


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows in columns as wide as they need; what a terminal would take for a command is not passed on."""
    lines = [[printable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def models_table(models: Iterable[Model]) -> str:
    """Return one line for each version of the models."""
    return versions_table((model.model, version) for model in models for version in model.versions)


def versions_table(versions: Iterable[tuple[str, Version]]) -> str:
    """Return one line for each pair of a model's name and a version."""
    rows = [
        (
            model,
            version.version,
            version.state,
            f"{version.weight:g} %",
            ", ".join(version.labels),
            version.num_workers,
            version.contract.get("precision", ""),
            _accuracy(version.contract),
            version.reason,
        )
        for model, version in versions
    ]
    head = ("MODEL", "VERSION", "STATE", "TRAFFIC", "LABELS", "WORKERS", "PRECISION", "ACCURACY", "")
    return table(head, rows)


def traffic_table(traffic: Traffic) -> str:
    """Return the weights, the labels and what keys stick to."""
    labels: dict[str, list[str]] = {}
    for label, version in traffic.labels.items():
        labels.setdefault(version, []).append(label)
    weights, shadows = traffic.weights, traffic.shadows
    versions = sorted({*weights, *labels, *shadows}, key=lambda each: -weights.get(each, 0))
    rows = [
        (
            each,
            f"{weights.get(each, 0):g} %",
            f"{shadows[each]:g} %" if each in shadows else "",
            ", ".join(labels.get(each, [])),
        )
        for each in versions
    ]
    sticky = f"by the header {traffic.sticky_header}" if traffic.sticky_header else "anew for every request"
    note = f"{traffic.model}, revision {traffic.revision}; who shares is decided {sticky}"
    return f"{note}\n{table(('VERSION', 'TRAFFIC', 'SHADOW', 'LABELS'), rows)}"


def shadows_table(shadows: Iterable[Shadow]) -> str:
    """Return one line for each pair of versions."""
    rows = [
        (
            each.shadow,
            each.primary,
            each.num_requests,
            each.num_failed,
            each.num_shed,
            "" if each.agreement is None else f"{each.agreement:.2%}",
            f"{each.largest_difference:.3g}",
            "" if each.latency_difference_ms is None else f"{each.latency_difference_ms:+.1f} ms",
        )
        for each in shadows
    ]
    head = ("SHADOW", "OF", "COMPARED", "FAILED", "SHED", "SAME CLASS", "LARGEST DIFFERENCE", "LATENCY")
    return table(head, rows)


def rollout_table(rollout: Rollout) -> str:
    """Return where a rollout has got to, and what its guards have seen."""
    head = (
        f"rollout {rollout.id}: {rollout.version} instead of {rollout.stable}, {rollout.state} at {rollout.percent:g} %"
    )
    if rollout.reason:
        head += f": {rollout.reason}"
    if not rollout.guards:
        return head
    rows = [
        (
            guard.name,
            f"{guard.num_bad} of {guard.num_all}",
            "" if guard.stable_num_all is None else f"{guard.stable_num_bad} of {guard.stable_num_all}",
            f"{guard.evidence:.3g}",
            f"{guard.breaks_at:g}",
        )
        for guard in rollout.guards
    ]
    step = (
        f"step: {rollout.step_requests} of {rollout.min_requests} requests, {rollout.step_seconds:.0f} of "
        f"{rollout.min_seconds:g} s"
    )
    lines = [head] if rollout.ended else [head, step]
    return "\n".join((*lines, table(("GUARD", "BAD", "STABLE", "EVIDENCE", "BREAKS AT"), rows)))


def rollouts_table(rollouts: Iterable[Rollout]) -> str:
    """Return one line for each rollout."""
    rows = [
        (each.id, each.version, each.stable, each.state, each.percent, each.started, each.reason) for each in rollouts
    ]
    return table(("ID", "VERSION", "INSTEAD OF", "STATE", "AT %", "STARTED", "WHY"), rows)


def events_table(events: Iterable[Event]) -> str:
    """Return one line for each event, what it changed included."""
    rows = [
        (
            event.id,
            event.time,
            event.actor,
            f"{event.action} {event.subject}".strip(),
            event.outcome,
            "; ".join(part for part in (event.detail, event.reason, _differences(event)) if part),
        )
        for event in events
    ]
    return table(("ID", "TIME", "WHO", "WHAT", "OUTCOME", "WHY"), rows)


def printable(text: str) -> str:
    """Return a text without what a terminal would take for a command."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _accuracy(contract: Mapping[str, Any]) -> str:
    accuracy = (contract.get("evaluation") or {}).get("accuracy")
    return "" if accuracy is None else f"{accuracy:.2%}"


def _differences(event: Event) -> str:
    """Return each part of the state that an event changed as `name: before -> after`."""
    before, after = event.before or {}, event.after or {}
    names = [name for name in after if name != "revision" and before.get(name) != after[name]]
    return ", ".join(f"{name}: {_short(before.get(name))} -> {_short(after[name])}" for name in names)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(
            f"{key}={part:g}" if isinstance(part, float) else f"{key}={part}" for key, part in value.items()
        )
    return str(value)
