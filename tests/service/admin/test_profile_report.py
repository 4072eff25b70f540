"""Profiles of several batches become one table and one trace."""

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from service.admin import profile_report
from service.admin.profile_report import join_traces, report
from service.batching.profile_request import ProfiledBatch
from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from tests.fake_backend import make_profile, make_trace

TARGET = Target("digits", "1.0")


def operator(name: str, own: float, kernels: float = 0.0) -> dict[str, Any]:
    return {"operator": name, "num_calls": 2, "self_cpu_ms": own, "cpu_ms": own + 1, "self_device_ms": kernels}


def test_times_are_means_and_shares_are_of_all_batches() -> None:
    first = make_profile(operators=[operator("aten::conv", 6.0), operator("aten::relu", 2.0)])
    second = make_profile(
        operators=[operator("aten::conv", 4.0)], stages=[{"stage": "graph", "ms": 3.0}, {"stage": "rank", "ms": 1.0}]
    )
    info = report(TARGET, [ProfiledBatch(3, first), ProfiledBatch(1, second)], 1)
    assert (info.num_batches, info.num_items, info.num_self_check, info.devices) == (2, 4, 1, ["cpu"])
    assert [(each.stage, each.ms) for each in info.stages] == [("decode", 0.5), ("graph", 6.0), ("rank", 0.5)]
    assert [each.share for each in info.stages] == pytest.approx([1 / 14, 12 / 14, 1 / 14])
    conv, relu = info.operators
    assert (conv.operator, conv.num_calls, conv.self_cpu_ms, conv.cpu_ms) == ("aten::conv", 2.0, 5.0, 6.0)
    assert (relu.operator, relu.num_calls, relu.self_cpu_ms) == ("aten::relu", 1.0, 1.0)
    assert [conv.share, relu.share] == pytest.approx([10 / 12, 2 / 12])
    assert {each.device_share for each in info.operators} == {0.0}
    assert (info.trace, info.num_traced) == (None, 0)


def test_kernels_have_shares_of_their_own() -> None:
    rows = [operator("aten::a", 1.0, 3.0), operator("aten::b", 1.0, 1.0)]
    info = report(TARGET, [ProfiledBatch(1, make_profile(device="cuda:0", operators=rows))], 0)
    assert [(each.operator, each.device_share) for each in info.operators] == [("aten::a", 0.75), ("aten::b", 0.25)]


def test_traces_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_report, "PIECE_BYTES", 7)  # so that pieces end anywhere
    batches = [ProfiledBatch(1, make_profile(trace=make_trace(*names))) for names in (("a", "b"), ("c",))]
    info = report(TARGET, [*batches, ProfiledBatch(1, make_profile())], 0)
    assert info.num_traced == 2
    assert info.trace is not None
    document = json.loads(gzip.decompress(base64.b64decode(info.trace)))
    assert [event["name"] for event in document["traceEvents"]] == ["a", "b", "c"]
    assert document["displayTimeUnit"] == "ms"


@pytest.mark.parametrize(
    "change",
    [
        {"operators": [{"operator": "aten::a"}]},
        {"operators": [operator("aten::a", float("nan"))]},
        {"stages": None},
        {"trace": "no base64!"},
        {"trace": base64.b64encode(b"no zlib").decode()},
        {"trace": base64.b64encode(zlib.compress(b"{}" * 1000)[:-8]).decode()},
        {"trace": 7},
    ],
)
def test_what_is_no_profile_is_the_backends_failure(change: dict[str, Any]) -> None:
    with pytest.raises(BackendFailed, match="its profile cannot be read"):
        report(TARGET, [ProfiledBatch(1, make_profile(**change))], 0)


def test_a_trace_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_report, "MAX_EVENT_BYTES", 1000)
    monkeypatch.setattr(profile_report, "PIECE_BYTES", 100)
    assert join_traces([zlib.compress(b"1" * 1000)])
    with pytest.raises(ValueError, match="larger"):
        join_traces([zlib.compress(b"1" * 1001)])
