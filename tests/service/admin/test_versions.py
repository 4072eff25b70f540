"""Random sequences of changes: whatever is asked for, what is kept makes sense and the log tells of it."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from service.admin.versions import AdminContext, Operations
from service.config.settings import Settings
from service.domain.backend import Target
from service.domain.model_state import Entry
from service.errors.gateway import GatewayError, NotReady
from service.persistence.archives.model_store import ModelStore
from service.persistence.database import Database
from service.persistence.leader_lease import Lease
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.persistence.state_store import StateStore
from service.serving.reconciler import Reconciler
from service.serving.router import Router
from service.telemetry.metrics import Metrics
from service.telemetry.policy_metrics import PolicyMetrics
from tests.fake_backend import FakeBackend, FakeControl
from tests.stores import make_store

VERSIONS = ["1.0", "1.1", "1.2"]
LABELS = ["stable", "canary"]


class Gate:
    """Everything between the routes and the seam."""

    def __init__(self, folder: Path) -> None:
        contracts = make_store(folder, [("digits", version, "fp32") for version in VERSIONS])
        self.control = FakeControl(contracts)
        options: dict[str, Any] = {"model_store": folder, "health_interval_seconds": 0.001, "workers_per_version": 1}
        made = Settings(drain_seconds=1, model_store_policy="all", **options)
        database = Database(made.state_url)
        self.registry = Registry(StateStore(database, "test"), 0.01, PolicyMetrics(Metrics()))
        membership, lease = Membership(database, "test", "server"), Lease(database, "test")
        store = ModelStore(made, database, Metrics())
        self.reconciler = Reconciler(
            made, store, FakeBackend(), self.control, self.registry, membership, lease, Metrics()
        )
        self.router = Router(self.reconciler, self.registry, None)
        self.operations = Operations(store, self.reconciler, self.registry, 3)

    async def settle(self) -> None:
        """Return when the gateway has seen of the backend what there is to see."""
        async with asyncio.timeout(10):
            while not all(self._is_seen(Target("digits", version)) for version in VERSIONS):
                await asyncio.sleep(0.001)

    def _is_seen(self, target: Target) -> bool:
        model_version = self.reconciler.find(target)
        if model_version is None:
            return "digits" in self.registry.models and target.version not in self.registry.models["digits"].wanted
        return (model_version.state == "ready") == (self.control.num_ready_of.get(target, 1) > 0)


@asynccontextmanager
async def running() -> AsyncIterator[Gate]:
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(Path(folder))
        await gate.reconciler.start()
        try:
            await gate.settle()
            yield gate
        finally:
            await gate.reconciler.close(0)


version = st.sampled_from(VERSIONS)
weights = st.dictionaries(version, st.sampled_from([0, 1, 10, 50, 90, 99, 100]), min_size=1)
split = st.tuples(version, version, st.integers(0, 100)).map(lambda t: {t[0]: 100 - t[2], t[1]: t[2]})
step = st.one_of(
    st.tuples(st.just("traffic"), st.one_of(weights, split)),
    st.tuples(st.just("label"), st.sampled_from(LABELS), version),
    st.tuples(st.just("unlabel"), st.sampled_from(LABELS)),
    st.tuples(st.just("register"), version),
    st.tuples(st.just("unregister"), version),
    st.tuples(st.just("scale"), version, st.integers(1, 3)),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("goes"), version),
    st.tuples(st.just("comes"), version),
)


async def take(gate: Gate, name: str, *arguments: Any, revision: int | None = None) -> None:
    asked, operations = AdminContext(Entry("test", name, "digits"), revision), gate.operations
    match name, *arguments:
        case "traffic", weights:
            await operations.set_traffic(asked, "digits", weights, None, {})
        case "label", label, version:
            await operations.set_label(asked, "digits", label, version)
        case "unlabel", label:
            await operations.delete_label(asked, "digits", label)
        case "register", version:
            await operations.register(asked, "digits", f"digits-{version}.mar", None)
        case "unregister", version:
            await operations.unregister(asked, "digits", version)
        case "scale", version, num_workers:
            await operations.scale(asked, "digits", version, num_workers)
        case "rollback", *_:
            await operations.roll_back(asked, "digits")


async def play(steps: list[Any], stale: random.Random) -> None:
    async with running() as gate:
        for name, *arguments in steps:
            state = gate.registry.models["digits"]
            num_events = len(await gate.registry.log("digits", 1000, None))
            if name in {"goes", "comes"}:
                gate.control.num_ready_of[Target("digits", arguments[0])] = int(name == "comes")
                await gate.settle()
                check_routes(gate)
                continue
            revision = stale.choice([None, state.revision, state.revision - 1])
            try:
                await take(gate, name, *arguments, revision=revision)
                is_refused = False
            except GatewayError:
                is_refused = True
            await gate.settle()
            after = gate.registry.models["digits"]
            event, *_ = log = await gate.registry.log("digits", 1000, None)
            if is_refused:
                assert after == state
                assert (event.outcome, event.entry.action) == ("refused", name)
                assert len(log) == num_events + 1
            elif after != state:
                assert revision in {None, state.revision}
                assert after.revision == state.revision + 1
                assert (event.outcome, event.after) == ("done", after.shown())
                assert event.before == state.shown()
                assert len(log) == num_events + 1
            else:
                assert len(log) == num_events
            check_state(gate)
            check_routes(gate)


def check_state(gate: Gate) -> None:
    state = gate.registry.models["digits"]
    assert state.policy is not None
    assert sum(state.policy.weights.values()) == 100
    assert set(state.policy.weights) <= set(state.wanted)
    assert set(state.labels.values()) <= set(state.wanted)


def check_routes(gate: Gate) -> None:
    """Traffic goes to versions that are ready, and only if there is none with traffic it goes nowhere."""
    policy = gate.registry.models["digits"].policy
    assert policy is not None
    ready = {
        version
        for version in policy.weights
        if (model_version := gate.reconciler.find(Target("digits", version))) and model_version.state == "ready"
    }
    for _ in range(20):
        try:
            assert gate.router.route("digits", None, None, {}).target.version in ready
        except NotReady:
            assert not ready


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_whatever_is_asked_for_the_state_makes_sense_and_the_log_has_it(steps: list[Any], stale: random.Random) -> None:
    asyncio.run(play(steps, stale))
