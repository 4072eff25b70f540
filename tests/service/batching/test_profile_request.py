"""Batches sent through an order are profiled until there are enough, and teach the batcher nothing."""

import asyncio

import pytest

from service.batching.batcher import Batcher
from service.batching.profile_request import ProfileRequest
from service.domain.backend import BatchOptions, Ranking, Target
from service.errors.admin import ProfileUnsupported
from service.errors.gateway import BackendFailed
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend, make_profile, make_trace
from tests.service.batching.waiting import ask
from tests.service.limits import LIMITS

pytestmark = pytest.mark.anyio

TARGET = Target("digits", "1.0")


async def test_as_many_batches_as_asked_for_are_profiled_and_no_more() -> None:
    backend = FakeBackend()
    order = ProfileRequest(backend, 2, "trace")
    for number in range(4):
        assert order.is_wanting == (number < 2)
        answer = await order.predict(TARGET, [b"class:1"] * (number + 1), BatchOptions(top_k=3), 1)
        assert isinstance(answer.results[0], Ranking)
    assert [options.profile for options in backend.options] == ["trace", "trace", None, None]
    assert [options.top_k for options in backend.options] == [3] * 4
    assert [batch.num_items for batch in order.batches] == [1, 2]
    assert order.done.is_set()


@pytest.mark.parametrize(
    ("profile", "error"),
    [(None, ProfileUnsupported), ({"error": "busy"}, BackendFailed), (["odd"], BackendFailed)],
)
async def test_an_answer_without_a_profile_ends_the_order_but_stands(profile: object, error: type[Exception]) -> None:
    backend = FakeBackend()
    backend.profile = profile
    order = ProfileRequest(backend, 5, "table")
    answer = await order.predict(TARGET, [b"class:1"], BatchOptions(top_k=1), 1)
    assert answer.results == [Ranking([(1, 1.0)])]
    assert isinstance(order.error, error)
    assert order.done.is_set()
    await order.predict(TARGET, [b"class:1"], BatchOptions(top_k=1), 1)
    assert [options.profile for options in backend.options] == ["table", None]


async def test_a_batch_that_fails_ends_the_order_and_is_not_profiled_when_tried_again() -> None:
    backend = FakeBackend()
    backend.fails_once_with = BackendFailed("torch cannot")
    batcher = Batcher(TARGET, backend, LIMITS, VersionMetrics(Metrics(), TARGET))
    order = ProfileRequest(backend, 5, "table")
    both = ask(2)
    with batcher.profiled(order):
        batcher.submit(both, [b"class:1", b"class:2"])
        async with asyncio.timeout(10):
            await both.done.wait()
    assert both.results == [Ranking([(1, 1.0)]), Ranking([(2, 1.0)])]
    assert isinstance(order.error, BackendFailed)
    assert [options.profile for options in backend.options] == ["table", None, None]


async def test_a_batch_that_is_cancelled_is_asked_for_again() -> None:
    backend = FakeBackend()
    order = ProfileRequest(backend, 1, "table")
    backend.hold()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await order.predict(TARGET, [b"class:1"], BatchOptions(top_k=1), 1)
    assert order.is_wanting
    assert not order.done.is_set()
    backend.release()
    await order.predict(TARGET, [b"class:1"], BatchOptions(top_k=1), 1)
    assert order.done.is_set()
    assert order.error is None


async def test_traces_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    trace = make_trace("a")
    backend.profile = make_profile(trace=trace)
    monkeypatch.setattr("service.batching.profile_request.MAX_TRACE_CHARACTERS", 2 * len(trace))
    order = ProfileRequest(backend, 4, "trace")
    for _ in range(4):
        await order.predict(TARGET, [b"class:1"], BatchOptions(top_k=1), 1)
    assert [bool(batch.profile.get("trace")) for batch in order.batches[:3]] == [True, True, False]
    assert [options.profile for options in backend.options] == ["trace", "trace", "trace", "table"]


async def test_the_cost_model_learns_nothing_from_profiled_batches() -> None:
    backend, metrics = FakeBackend(), Metrics()
    version_metrics = VersionMetrics(metrics, TARGET)
    batcher = Batcher(TARGET, backend, LIMITS, version_metrics)
    version_metrics.watch(batcher.gauges)

    async def ask_often(num_times: int) -> None:
        for _ in range(num_times):
            each = ask(1)
            batcher.submit(each, [b"class:1"])
            async with asyncio.timeout(10):
                await each.done.wait()

    def believed() -> object:
        return metrics.registry.get_sample_value(
            "torchgate_batch_model_per_item_seconds", {"model": "digits", "version": "1.0"}
        )

    await ask_often(20)
    before = believed()
    assert before
    backend.service_seconds = 5.0
    with batcher.profiled(ProfileRequest(backend, 20, "table")):
        await ask_often(20)
    assert believed() == before
    await ask_often(40)
    assert believed() != before
