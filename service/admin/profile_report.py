"""The profiles of several batches as one table and one Chrome trace; all of it is work for a thread."""

import base64
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from service.batching.profile_request import ProfiledBatch
from service.domain.backend import Target
from service.domain.profile import HandlerProfile, OperatorShare, ProfileInfo, StageShare
from service.errors.gateway import BackendFailed

GZIP = 16 + zlib.MAX_WBITS
# Of one batch's events when they are unpacked: some 500,000 of them.
MAX_EVENT_BYTES = 128 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
OPERATOR_SUMS = ("num_calls", "self_cpu_ms", "cpu_ms", "self_device_ms")


def report(target: Target, batches: Sequence[ProfiledBatch], num_self_check: int) -> ProfileInfo:
    """Return the batches' table, with means over the batches, and their trace, if they have one.

    Raises:
        BackendFailed: a handler answered something else than a profile.
    """
    try:
        profiles = [HandlerProfile.model_validate(batch.profile) for batch in batches]
        traces = [base64.b64decode(profile.trace, validate=True) for profile in profiles if profile.trace is not None]
        trace = base64.b64encode(join_traces(traces)).decode() if traces else None
    except (ValidationError, ValueError, zlib.error) as error:
        raise BackendFailed(f"its profile cannot be read: {str(error)[:300]}") from error
    return ProfileInfo(
        model=target.model,
        version=target.version,
        devices=sorted({profile.device for profile in profiles}),
        num_batches=len(batches),
        num_self_check=num_self_check,
        num_items=sum(batch.num_items for batch in batches),
        stages=_stages(profiles),
        operators=_operators(profiles),
        num_traced=len(traces),
        trace=trace,
    )


def join_traces(traces: Iterable[bytes]) -> bytes:
    """Return one Chrome trace, gzip of JSON, of the events of several, each zlib of JSON objects with commas between.

    Bytes are moved, never parsed: reading a million events as objects would hold the gateway up.

    Raises:
        ValueError, zlib.error: one is not such, or unpacks to more than may be.
    """
    packer = zlib.compressobj(wbits=GZIP)
    pieces = [packer.compress(b'{"displayTimeUnit":"ms","traceEvents":[\n')]
    for index, trace in enumerate(traces):
        if index:
            pieces.append(packer.compress(b",\n"))
        unpacker, num_bytes = zlib.decompressobj(), 0
        while not unpacker.eof:
            piece = unpacker.decompress(trace, PIECE_BYTES)
            num_bytes += len(piece)
            if num_bytes > MAX_EVENT_BYTES or (not piece and not unpacker.eof):
                raise ValueError("a trace is cut off, or larger than may be")
            pieces.append(packer.compress(piece))
            trace = unpacker.unconsumed_tail  # noqa: PLW2901
    pieces.append(packer.compress(b"\n]}\n") + packer.flush())
    return b"".join(pieces)


def _stages(profiles: Sequence[HandlerProfile]) -> list[StageShare]:
    times: dict[str, float] = defaultdict(float)
    for each in (stage for profile in profiles for stage in profile.stages):
        times[each.stage] += each.ms
    total = sum(times.values())
    return [StageShare(stage=name, ms=ms / len(profiles), share=_share(ms, total)) for name, ms in times.items()]


def _operators(profiles: Sequence[HandlerProfile]) -> list[OperatorShare]:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(OPERATOR_SUMS, 0.0))
    for each in (operator for profile in profiles for operator in profile.operators):
        for name in OPERATOR_SUMS:
            sums[each.operator][name] += getattr(each, name)
    cpu_ms, device_ms = (sum(own[name] for own in sums.values()) for name in ("self_cpu_ms", "self_device_ms"))
    rows = [
        OperatorShare(
            operator=operator,
            **{name: number / len(profiles) for name, number in own.items()},
            share=_share(own["self_cpu_ms"], cpu_ms),
            device_share=_share(own["self_device_ms"], device_ms),
        )
        for operator, own in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.share - row.device_share, row.operator))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
