"""Spans of requests, and the protocol `Tracing` that samples and exports them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from service.telemetry.trace_context import TraceContext, write_parent

SpanKind = Literal["server", "client", "internal"]
Attributes = Mapping[str, str | int | float]
_ids = random.Random()  # noqa: S311 - ids tell spans apart, and are no secret


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A span in progress."""

    trace_id: str
    span_id: str
    parent_id: str | None
    has_remote_parent: bool
    state: str
    _sink: "Callable[[Span], None]"
    attributes: Attributes | None = None  # those known before it ends

    def child(self) -> "OpenSpan":
        """Begin a span inside this one."""
        return OpenSpan(self.trace_id, _new_span_id(), self.span_id, False, self.state, self._sink)

    def headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers that make this span the parent of a server's spans."""
        parent = ("traceparent", write_parent(self.trace_id, self.span_id))
        return (parent, ("tracestate", self.state)) if self.state else (parent,)

    def end(
        self,
        name: str,
        kind: SpanKind,
        started: float,
        ended: float,
        attributes: Attributes,
        links: "Sequence[OpenSpan]" = (),
        error: str | None = None,
    ) -> None:
        """Record the span. Times are time.monotonic()'s; `error` is the code of a failure."""
        self._sink(Span(self, name, kind, started, ended, attributes, links, error))


@dataclass(slots=True, eq=False)  # frozen ones take four times as long to make
class Span:
    """A completed span."""

    context: OpenSpan
    name: str
    kind: SpanKind
    started: float
    ended: float
    attributes: Attributes
    links: Sequence[OpenSpan]
    error: str | None


class Tracing(Protocol):
    """Samples requests and exports their spans."""

    def start(self) -> None:
        """Get ready for spans."""

    def begin(self, given: TraceContext | None, *, may_decide: bool) -> OpenSpan | None:
        """Begin the span of a request that came with the context `given`. Return None if it is not recorded.

        `may_decide` is whether its sender's decision counts.
        """

    async def close(self) -> None:
        """Export the recorded spans, within a few seconds."""


class NoTracing:
    """Records nothing."""

    def start(self) -> None:
        """Do nothing."""

    def begin(self, given: TraceContext | None, *, may_decide: bool) -> OpenSpan | None:
        """Return None."""
        return None

    async def close(self) -> None:
        """Do nothing."""


class Sampler:
    """Follows the decision of those who may decide (parent-based); records a share of all other requests."""

    def __init__(self, ratio: float, sink: Callable[[Span], None]) -> None:
        self._ratio = ratio
        self._sink = sink

    def begin(self, given: TraceContext | None, *, may_decide: bool) -> OpenSpan | None:
        """Begin the span of a request. Return None if it is not recorded."""
        # Drawn, not computed from the trace's id: a stranger could choose an id that is always recorded.
        if not (given.is_sampled if given is not None and may_decide else _ids.random() < self._ratio):
            return None
        if given is not None:
            return OpenSpan(given.trace_id, _new_span_id(), given.span_id, True, given.state, self._sink)
        return OpenSpan(_new_trace_id(), _new_span_id(), None, False, "", self._sink)


def _new_trace_id() -> str:
    return f"{_ids.getrandbits(128) or 1:032x}"  # zero is no id


def _new_span_id() -> str:
    return f"{_ids.getrandbits(64) or 1:016x}"
