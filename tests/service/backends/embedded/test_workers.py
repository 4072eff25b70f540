"""Real worker processes and what goes wrong with them: who is hurt, who is not, and what is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.backends.embedded.backend import EmbeddedBackend
from service.domain.backend import BatchAnswer, BatchOptions, ItemError
from service.errors.gateway import BackendFailed, BackendTimeout, WorkerDied
from service.telemetry.metrics import Metrics
from tests.odd_archive import FILE, TARGET, write_archive
from tests.service.backends.embedded.odd_workers import (
    SECONDS,
    ask,
    chosen,
    make_workers,
    until_ready,
    worker_processes,
)
from tests.stores import as_verified

pytestmark = pytest.mark.anyio

LIMIT_BYTES = 700_000_000


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that workers are started once for it."""
    return "asyncio"


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, metrics: Metrics) -> AsyncIterator[EmbeddedBackend]:
    """Two workers, shared: each test waits until both are there."""
    store = tmp_path_factory.mktemp("store")
    write_archive(store / FILE)
    os.environ["TORCHGATE_SECRET"] = "secret"
    workers = make_workers(store, metrics, worker_max_bytes=LIMIT_BYTES)
    await workers.start()
    await workers.load(TARGET, as_verified(store / FILE), 2)
    del os.environ["TORCHGATE_SECRET"]
    yield workers
    await workers.close()
    assert not worker_processes()


@pytest.fixture
async def workers(running: EmbeddedBackend) -> EmbeddedBackend:
    await until_ready(running, 2)
    return running


async def pid_of(workers: EmbeddedBackend, *items: str, **options: Any) -> int:
    """Send a batch; return who answered it."""
    answer = await ask(workers, "pid:", *items, **options)
    assert isinstance(answer.results[0], ItemError)
    return int(answer.results[0].message)


async def pids(workers: EmbeddedBackend) -> set[int]:
    """Return the ids of the workers that answer."""
    found: set[int] = set()
    while len(found) < 2:
        found.update(await asyncio.gather(*(pid_of(workers, "sleep:0.05") for _ in range(2))))
    return found


def restarts(metrics: Metrics, reason: str) -> float:
    labels = {"model": "odd", "version": "1.0", "reason": reason}
    return metrics.registry.get_sample_value("torchgate_worker_restarts_total", labels) or 0.0


async def outcomes_beside(workers: EmbeddedBackend, bad: str, timeout_seconds: float) -> BaseException | BatchAnswer:
    """Send a batch and, while it runs, six others; return how it ended, once each of them had its own answer.

    Some of them wait behind the bad one in its worker's socket.
    """
    task = asyncio.create_task(ask(workers, bad, timeout_seconds=timeout_seconds))
    await asyncio.sleep(0)
    others = await asyncio.gather(*(ask(workers, f"class:{i % 4}") for i in range(6)))
    assert [chosen(other) for other in others] == [i % 4 for i in range(6)]
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return outcome


async def test_batches_one_after_another_go_to_the_worker_that_is_warm(workers: EmbeddedBackend) -> None:
    await pids(workers)  # both have worked
    assert len({await pid_of(workers) for _ in range(6)}) == 1


async def learn(workers: EmbeddedBackend) -> None:
    """Have both workers learn that an image takes 0.05 s."""
    for _ in range(12):
        await asyncio.gather(*(ask(workers, "sleep:0.05") for _ in range(2)))


async def test_the_next_batch_waits_for_the_worker_that_should_be_free_first(workers: EmbeddedBackend) -> None:
    await learn(workers)
    quick = asyncio.create_task(pid_of(workers, "sleep:0.4", *["class:0"] * 7))
    await asyncio.sleep(0)  # it has its worker
    slow = asyncio.create_task(pid_of(workers, "sleep:1.5", *["class:0"] * 29))
    await asyncio.sleep(0)
    assert await pid_of(workers) == await quick != await slow


async def test_a_worker_that_should_have_been_free_long_ago_gets_no_batch(workers: EmbeddedBackend) -> None:
    await learn(workers)
    late = asyncio.create_task(pid_of(workers, "sleep:1.5"))
    await asyncio.sleep(0)  # it has its worker
    await pid_of(workers, "sleep:0.6", *["class:0"] * 10)  # of the other one, which takes as long as it has learnt
    quick = asyncio.create_task(pid_of(workers, "sleep:0.3", *["class:0"] * 3))
    await asyncio.sleep(0)
    assert await pid_of(workers) == await quick != await late


async def test_the_next_batch_does_not_wait_behind_a_large_image(workers: EmbeddedBackend) -> None:
    await learn(workers)
    quick = asyncio.create_task(pid_of(workers, "sleep:0.5", *["class:0"] * 30))  # should take 1.5 s
    await asyncio.sleep(0)  # it has its worker
    large = asyncio.create_task(pid_of(workers, "sleep:1.5", is_large=True))
    await asyncio.sleep(0)
    assert await pid_of(workers) == await quick != await large


async def test_one_that_dies_takes_its_own_batch_alone(workers: EmbeddedBackend, metrics: Metrics) -> None:
    before = restarts(metrics, "died")
    outcome = await outcomes_beside(workers, "exit:3", SECONDS)
    assert isinstance(outcome, WorkerDied)
    assert "exit status 3" in str(outcome)
    await until_ready(workers, 2)
    assert restarts(metrics, "died") == before + 1


async def test_one_that_passes_its_limit_is_replaced(workers: EmbeddedBackend, metrics: Metrics) -> None:
    before = restarts(metrics, "timeout")
    outcome = await outcomes_beside(workers, "sleep:600", 0.5)
    assert isinstance(outcome, BackendTimeout)
    await until_ready(workers, 2)
    assert restarts(metrics, "timeout") == before + 1


async def test_one_that_is_stopped_is_replaced(workers: EmbeddedBackend) -> None:
    before = await pids(workers)
    stopped = min(before)
    os.kill(stopped, signal.SIGSTOP)
    outcomes = await asyncio.gather(
        *(ask(workers, f"class:{i % 4}", timeout_seconds=1) for i in range(4)), return_exceptions=True
    )
    late = [outcome for outcome in outcomes if isinstance(outcome, BackendTimeout)]
    right = [i for i, each in enumerate(outcomes) if isinstance(each, BatchAnswer) and chosen(each) == i % 4]
    assert (len(late), len(right)) == (1, 3), "the batch behind it goes to the other worker"
    await until_ready(workers, 2)
    assert stopped not in await pids(workers)


async def test_a_limit_counts_from_sending_and_harms_no_worker_that_runs_another_batch(
    workers: EmbeddedBackend, metrics: Metrics
) -> None:
    before = await pids(workers)
    num_restarts = restarts(metrics, "timeout")
    slow = [asyncio.create_task(ask(workers, "sleep:1")) for _ in range(2)]
    await asyncio.sleep(0)
    started = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(
        *(ask(workers, "class:1", timeout_seconds=0.3) for _ in range(2)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [BackendTimeout] * 2
    assert asyncio.get_running_loop().time() - started < 0.9
    await asyncio.gather(*slow)
    assert await pids(workers) == before
    assert restarts(metrics, "timeout") == num_restarts


async def test_a_limit_counts_for_its_own_batch_alone(workers: EmbeddedBackend, metrics: Metrics) -> None:
    before = restarts(metrics, "timeout")
    first = await pid_of(workers, timeout_seconds=0.3)
    assert await pid_of(workers, "sleep:0.6") == first  # past the limit of the one before
    await pid_of(workers, timeout_seconds=0.3)
    (outcome,) = await asyncio.gather(ask(workers, "sleep:600", timeout_seconds=0.6), return_exceptions=True)
    assert isinstance(outcome, BackendTimeout)
    await until_ready(workers, 2)
    assert restarts(metrics, "timeout") == before + 1


async def test_a_caller_that_leaves_does_not_shift_the_answers(workers: EmbeddedBackend) -> None:
    for _ in range(5):
        leaving = [asyncio.create_task(ask(workers, "sleep:0.01")) for _ in range(3)]
        staying = [asyncio.create_task(ask(workers, f"class:{i % 4}")) for i in range(8)]
        await asyncio.sleep(0)
        leaving[0].cancel()
        leaving[2].cancel()
        assert [chosen(answer) for answer in await asyncio.gather(*staying)] == [i % 4 for i in range(8)]
        await asyncio.gather(*leaving, return_exceptions=True)


async def test_an_exception_in_the_handler_fails_its_batch(workers: EmbeddedBackend) -> None:
    outcome = await outcomes_beside(workers, "raise:no", SECONDS)
    assert isinstance(outcome, BackendFailed)
    assert not isinstance(outcome, WorkerDied)


async def test_the_trace_of_a_batch_reaches_its_handler(workers: EmbeddedBackend) -> None:
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    told = []
    for headers in ([("traceparent", trace)], []):
        answer = await workers.predict(TARGET, [b"header:traceparent"], BatchOptions(1, headers=headers), SECONDS)
        told += [each.message for each in answer.results if isinstance(each, ItemError)]
    assert told == [trace, "None"]


async def test_large_batches_arrive_whole(workers: EmbeddedBackend) -> None:
    item = "class:3" + " " * 5_000_000
    answers = await asyncio.gather(*(ask(workers, *[item] * 8) for _ in range(6)))
    assert [len(answer.results) for answer in answers] == [8] * 6


async def test_one_that_leaks_is_replaced_and_nobody_notices(workers: EmbeddedBackend, metrics: Metrics) -> None:
    before = await pids(workers)
    await ask(workers, f"leak:{LIMIT_BYTES}")
    async with asyncio.timeout(SECONDS):
        number = 0
        while restarts(metrics, "memory") == 0 or (await workers.survey())[TARGET].num_ready < 2:
            number += 1
            assert chosen(await ask(workers, f"class:{number % 4}")) == number % 4
    async with asyncio.timeout(SECONDS):
        while len(left := before & {each.pid for each in worker_processes()}) != 1:
            await asyncio.sleep(0.01)
    assert left <= await pids(workers)


async def test_the_gateway_s_secrets_stay_its_own(workers: EmbeddedBackend) -> None:
    environment = (await workers.contract(TARGET))["runtime"]["environment"]
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["TS_DECODE_INPUT_REQUEST"] == "false"
    assert not [name for name in environment if name.startswith("TORCHGATE_")]


async def test_output_is_logged_and_bounded(workers: EmbeddedBackend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "service.backends.embedded.worker_log")
    await ask(workers, "print:100000", "print:5")
    async with asyncio.timeout(SECONDS):
        while not any(record.getMessage().endswith(": xxxxx") for record in caplog.records):
            await asyncio.sleep(0.01)
    assert max(len(record.getMessage()) for record in caplog.records) < 5000
