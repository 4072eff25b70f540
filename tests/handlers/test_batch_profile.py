"""A batch that is profiled is answered like any other, and says where its time went."""

import base64
import json
import subprocess
import sys
import zlib
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from handlers import batch_profile, image_classifier
from handlers.image_classifier import ImageClassifier
from tests import images
from tests.handlers.test_image_classifier import call, packed
from tests.torchserve_process import ROOT

STAGES = ["decode", "graph", "rank", "serialise"]
GOOD = [images.rgb_png(seed=seed) for seed in range(3)]


def events(profile: dict[str, Any]) -> list[dict[str, Any]]:
    text = zlib.decompress(base64.b64decode(profile["trace"])).decode()
    found: list[dict[str, Any]] = json.loads(f"[{text}]")
    return found


def test_the_answers_are_the_same_and_the_stages_and_operators_are_told(handler: ImageClassifier) -> None:
    items = (*GOOD, b"junk")
    plain, _ = call(handler, packed(*items, top_k=7))
    answer, status = call(handler, packed(*items, top_k=7, profile="table"))
    assert status == 200
    assert answer["results"] == plain["results"]
    assert set(answer["timings_ms"]) == {"decode", "compute"}
    profile = answer["profile"]
    assert set(profile) == {"device", "stages", "operators"}
    assert profile["device"] == "cpu"
    assert [each["stage"] for each in profile["stages"]] == STAGES
    assert all(each["ms"] > 0 for each in profile["stages"])
    operators = {each["operator"]: each for each in profile["operators"]}
    assert operators["aten::_convolution"]["num_calls"] == 1
    assert not any(name.startswith("stage::") for name in operators)
    own = [each["self_cpu_ms"] for each in profile["operators"]]
    assert own == sorted(own, reverse=True)
    # What the operators took lies inside the graph's stage, and none is counted twice.
    graph = next(each["ms"] for each in profile["stages"] if each["stage"] == "graph")
    assert sum(own) <= graph * 1.01
    assert "profile" not in call(handler, packed(*items, top_k=7))[0]


def test_a_trace_is_told_if_it_is_asked_for(handler: ImageClassifier) -> None:
    answer, _ = call(handler, packed(*GOOD, profile="trace"))
    names = {event["name"] for event in events(answer["profile"])}
    assert {"stage::decode", "stage::graph", "aten::_convolution"} <= names


def test_a_trace_past_its_bound_is_left_out(handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_profile, "MAX_TRACE_BYTES", 100)
    answer, _ = call(handler, packed(*GOOD, profile="trace"))
    assert answer["profile"]["operators"]
    assert "trace" not in answer["profile"]


def test_a_table_is_bounded(handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_profile, "MOST_OPERATORS", 2)
    profile = call(handler, packed(*GOOD, profile="table"))[0]["profile"]
    assert profile["operators"][0]["operator"].startswith("aten::")
    assert len(profile["operators"]) == 2


def test_images_that_all_fail_have_no_graph_to_show(handler: ImageClassifier) -> None:
    answer, status = call(handler, packed(b"", b"junk", profile="table"))
    assert status == 200
    assert [result["error"]["code"] for result in answer["results"]] == ["image_empty", "image_unrecognized"]
    assert [each["stage"] for each in answer["profile"]["stages"]] == ["decode", "serialise"]


@pytest.mark.parametrize("kind", ["everything", 1, True, ["table"], {}])
def test_another_kind_of_profile_is_refused(handler: ImageClassifier, kind: Any) -> None:
    answer, status = call(handler, packed(*GOOD, profile=kind))
    assert status == 400
    assert "options.profile must be" in answer["error"]["message"]


def test_where_torch_cannot_profile_the_answers_come_all_the_same(
    handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: object) -> None:
        raise RuntimeError("the profiler is in use")

    plain, _ = call(handler, packed(*GOOD))
    monkeypatch.setattr(profiler.profile, "__enter__", busy)
    answer, status = call(handler, packed(*GOOD, profile="table"))
    assert (status, answer["results"]) == (200, plain["results"])
    assert answer["profile"] == {"error": "the profiler is in use"}


def test_a_batch_that_breaks_the_handler_leaves_no_profiler_behind(
    handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(image_classifier, "rank", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call(handler, packed(*GOOD, profile="table"))
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    assert "error" not in call(handler, packed(*GOOD, profile="table"))[0]["profile"]


def test_kernels_of_a_gpu_count_for_the_operators_that_started_them() -> None:
    class Average:
        def __init__(self, key: str, device: str, own: float, kernels: float) -> None:
            self.key, self.count = key, 2
            self.device_type = _Device(device)
            self.self_cpu_time_total, self.cpu_time_total, self.self_device_time_total = own, own, kernels

    class _Device:
        def __init__(self, name: str) -> None:
            self.name = name

    averages = [
        Average("stage::graph", "CPU", 1000, 0),
        Average("aten::relu", "CPU", 10, 5),
        Average("aten::conv2d", "CPU", 4, 100),
        Average("void conv_kernel<float>", "CUDA", 0, 100),
        Average("stage::graph", "CUDA", 0, 105),
    ]
    seen = batch_profile.summarize(averages)
    assert seen["stages"] == [{"stage": "graph", "ms": 1.0}]
    assert [(each["operator"], each["self_device_ms"]) for each in seen["operators"]] == [
        ("aten::conv2d", 0.1),
        ("aten::relu", 0.005),
    ]


FIRST = """
import sys, time
import torch
from handlers.batch_profile import BatchProfile
before, started = len(sys.modules), time.perf_counter()
with {profile}:
    torch.zeros(3) + 1
print(len(sys.modules) - before, round(1000 * (time.perf_counter() - started)))
"""


def test_the_first_profile_of_a_worker_imports_next_to_nothing() -> None:
    """With -s: how much torch.profiler would."""
    for profile, most in (('BatchProfile(torch.device("cpu"), "table")', 10), ("torch.profiler.profile()", None)):
        command = [sys.executable, "-c", FIRST.format(profile=profile)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
        num_modules, ms = map(int, done.stdout.split())
        print(f"{profile}: {num_modules} modules, {ms} ms")
        if most is not None:
            assert num_modules <= most
            assert done.stderr == ""
