"""The seam's promises, kept by each backend and each control over real workers."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median

import pytest

from service.backends.factory import create_backend
from service.config.settings import Settings
from service.domain.backend import (
    Backend,
    BatchOptions,
    ItemError,
    ModelControl,
    ProbabilityVector,
    ProfileKind,
    Ranking,
    Target,
)
from service.errors.gateway import BackendError, BackendTimeout, BackendUnavailable
from service.telemetry.metrics import Metrics
from tests import images
from tests.end_to_end.test_images import bars
from tests.stack import Trained
from tests.stores import as_verified
from tests.torchserve_process import TorchServeProcess, free_ports

pytestmark = pytest.mark.anyio

FP32 = Target("synthetic", "1.0")
INT8 = Target("synthetic", "1.0-int8-dynamic")
BARS = images.encode(bars(True), "PNG")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that workers are started once for it."""
    return "asyncio"


def settings_for(torchserve: TorchServeProcess, kind: str = "grpc", **options: int) -> Settings:
    ports = {f"torchserve_{name}_port": torchserve.ports[name] for name in ("grpc", "rest", "management")}
    return Settings.model_validate({"backend": kind, **ports, **options})


def settings_of_workers(store: Path) -> Settings:
    return Settings.model_validate({"backend": "workers", "model_store": store})


@pytest.fixture(scope="module", params=["grpc", "rest", "workers"])
async def backend(request: pytest.FixtureRequest, trained: Trained) -> AsyncIterator[Backend]:
    """Each backend: over a TorchServe that a gateway has filled, or with a worker of its own."""
    if request.param == "workers":
        settings = settings_of_workers(trained.store)
    else:
        settings = settings_for(request.getfixturevalue("loaded_torchserve"), request.param)
    each, control = create_backend(settings, Metrics())
    await each.start()
    await control.start()
    if request.param == "workers":
        await control.load(FP32, as_verified(trained.store / "synthetic-1.0.mar"), 1)
    yield each
    await control.close()
    await each.close()


async def test_items_are_answered_in_order_and_the_bad_one_alone(backend: Backend) -> None:
    standing = images.encode(bars(False), "PNG")
    answer = await backend.predict(FP32, [BARS, b"", standing] * 4, BatchOptions(top_k=2), 30)
    assert answer.compute_seconds > 0
    for lying, empty, upright in zip(*(answer.results[start::3] for start in range(3)), strict=True):
        assert isinstance(lying, Ranking)
        assert isinstance(upright, Ranking)
        assert isinstance(empty, ItemError)
        assert empty.code == "image_empty"
        assert len(lying.top_k) == 2
        assert lying.top_k[0][0] != upright.top_k[0][0]


async def test_whole_vectors(backend: Backend) -> None:
    answer = await backend.predict(FP32, [BARS], BatchOptions(top_k=1, probabilities=True), 30)
    (vector,) = answer.results
    assert isinstance(vector, ProbabilityVector)
    assert sum(vector.probabilities) == pytest.approx(1, abs=1e-5)


async def test_a_profile_comes_beside_the_same_answers(backend: Backend) -> None:
    """With -s: what a batch of one takes with a profile and without, as medians of 20 in turns."""
    times: dict[ProfileKind | None, list[float]] = {None: [], "table": [], "trace": []}
    answers = []
    for _ in range(20):
        for kind, taken in times.items():
            started = time.perf_counter()
            answer = await backend.predict(FP32, [BARS], BatchOptions(top_k=2, profile=kind), 30)
            taken.append((time.perf_counter() - started) * 1e3)
            answers.append(answer.results)
            if kind is None:
                assert answer.profile is None
            else:
                assert answer.profile is not None
                assert ("trace" in answer.profile) == (kind == "trace")
                assert answer.profile["operators"]
    assert all(results == answers[0] for results in answers)
    print(
        f"{type(backend).__name__}, ms: " + ", ".join(f"{kind or 'plain'} {median(t):.1f}" for kind, t in times.items())
    )


@pytest.mark.parametrize("target", [Target("nobody", "1.0"), Target("synthetic", "99.0")])
async def test_what_is_not_loaded_is_unavailable(backend: Backend, target: Target) -> None:
    with pytest.raises(BackendUnavailable):
        await backend.predict(target, [BARS], BatchOptions(top_k=1), 30)


async def test_a_wait_has_a_limit(backend: Backend) -> None:
    slow = images.rgb_png(2000, 2000)  # takes a worker tens of milliseconds; the answer must not win the race
    with pytest.raises(BackendTimeout):
        await backend.predict(FP32, [slow] * 16, BatchOptions(top_k=1), 0.01)


@pytest.mark.parametrize("kind", ["grpc", "rest"])
async def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    (port,) = free_ports(1)
    settings = Settings.model_validate({"backend": kind, "torchserve_grpc_port": port, "torchserve_rest_port": port})
    backend, _ = create_backend(settings, Metrics())
    await backend.start()
    try:
        with pytest.raises(BackendUnavailable):
            await backend.predict(FP32, [BARS], BatchOptions(top_k=1), 10)
    finally:
        await backend.close()


@pytest.fixture(scope="module", params=["torchserve", "workers"])
def settings_of_an_empty_one(request: pytest.FixtureRequest, trained: Trained) -> Iterator[Settings]:
    """Each kind of control, with nothing loaded."""
    if request.param == "workers":
        yield settings_of_workers(trained.store)
    else:
        with TorchServeProcess(trained.store) as torchserve:
            yield settings_for(torchserve)


async def test_versions_are_loaded_scaled_and_unloaded(
    settings_of_an_empty_one: Settings, trained: Trained, tmp_path: Path
) -> None:
    (tmp_path / "synthetic-7.0.mar").write_bytes(b"")
    missing = as_verified(tmp_path / "synthetic-7.0.mar")  # not in TorchServe's store, and no archive
    control: ModelControl
    _, control = create_backend(settings_of_an_empty_one, Metrics())
    await control.start()
    try:
        assert await control.survey() == {}
        await control.load(FP32, as_verified(trained.store / "synthetic-1.0.mar"), 1)
        await control.load(INT8, as_verified(trained.store / "synthetic-1.0-int8-dynamic.mar"), 1)
        assert {target: status.num_ready for target, status in (await control.survey()).items()} == {
            FP32: 1,
            INT8: 1,
        }
        assert (await control.contract(FP32))["version"] == "1.0"
        assert (await control.contract(INT8))["variant"] == "int8-dynamic"
        await control.scale(INT8, 2)
        assert (await control.survey())[INT8].num_workers_wanted == 2
        with pytest.raises(BackendError, match=r"already registered|409"):
            await control.load(FP32, as_verified(trained.store / "synthetic-1.0.mar"), 1)
        with pytest.raises(BackendError):
            await control.load(Target("synthetic", "7.0"), missing, 1)
        await control.unload(FP32)  # the default version of TorchServe, with another beside it
        await control.unload(INT8)
        assert await control.survey() == {}
    finally:
        await control.close()


async def test_a_control_says_when_its_server_is_not_there() -> None:
    (port,) = free_ports(1)
    _, control = create_backend(Settings(torchserve_management_port=port), Metrics())
    await control.start()
    with pytest.raises(BackendUnavailable):
        await control.survey()
    await control.close()
