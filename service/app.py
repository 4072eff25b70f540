"""The composition root: settings in, an ASGI application out; its lifespan starts and stops the rest."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from service.access import Access
from service.api import problems
from service.api.asked import admin_route
from service.api.body import BodyLimits
from service.api.control import control_routes, event_routes
from service.api.edge import Edge
from service.api.feedback import feedback_routes
from service.api.health import health_routes
from service.api.ids import new_id
from service.api.models import model_routes
from service.api.predict import PATH, PredictApplication, PredictLimits, predict_routes
from service.api.profiles import profile_routes
from service.api.quality import quality_routes
from service.api.rollouts import rollout_routes, rollout_views
from service.api.status import status_routes
from service.backend import Backend, ModelControl
from service.conductor import Conductor
from service.database import Database
from service.feedback import Feedback
from service.fleet import Fleet
from service.hub import OwnPages, SharedPages
from service.ledger import Ledger
from service.logs import AccessLog
from service.loop_lag import LoopLag
from service.metrics import Metrics
from service.operations import Operations
from service.parts import make_prediction_log, make_seam, make_tracing
from service.peers import Peers
from service.policy_metrics import PolicyMetrics
from service.profiling import Profiling
from service.receipts import Receipts
from service.registry import Registry
from service.rollouts import RolloutOperations
from service.router import Router
from service.settings import Settings
from service.shadow import Shadows
from service.status.feed import Feed
from service.status.observer import Observer
from service.store import StateStore

logger = logging.getLogger(__name__)

DESCRIPTION = "Serves image classifiers: batches requests, keeps model versions loaded, shows what is going on."
RECEIPTS = "receipts"  # the name of the key that signs the ids of answers


def create_app(
    settings: Settings,
    backend: Backend | None = None,
    control: ModelControl | None = None,
    hub: socket.socket | None = None,
) -> ASGIApp:
    """Return the gateway; a test may put its own backend and control at the seam.

    `hub` leads to the process above where several share the port.
    """
    metrics = Metrics(settings.objectives)
    pages = OwnPages(metrics.registry) if hub is None else SharedPages(metrics.registry, hub)
    if backend is None or control is None:
        backend, control = make_seam(settings, metrics)
    gateway_name = f"{socket.gethostname()}-{new_id()[:8]}"
    database = Database(settings.state_url)
    ledger = Ledger(database, gateway_name)
    receipts = Receipts()
    prediction_log = make_prediction_log(settings, metrics)
    registry = Registry(
        StateStore(database, gateway_name),
        settings.database_poll_seconds,
        PolicyMetrics(metrics),
        on_open=lambda: receipts.use(ledger.secret(RECEIPTS)),
    )
    fleet = Fleet(settings, backend, control, registry, Peers(ledger, gateway_name), metrics)
    router = Router(fleet, registry, settings.default_model)
    shadows = Shadows(fleet, registry, metrics, settings.deadline_ms)
    tracing = make_tracing(settings, metrics, gateway_name)
    conductor = Conductor(fleet, registry, shadows, ledger, gateway_name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tracing.start()
        await fleet.start()
        await conductor.start()
        prediction_log.start()
        await pages.start()  # last: who has told what it counted has started
        try:
            async with LoopLag(metrics):
                yield
        finally:
            await conductor.close()
            # The server has let requests end, or cut them off at drain_seconds: nobody waits for a batch any more.
            await fleet.close(drain_seconds=0)
            await asyncio.to_thread(prediction_log.close)
            await tracing.close()
            await pages.close()
            logger.info("torchgate has stopped; nothing is left in progress")

    app = FastAPI(
        title="torchgate",
        version=version("torchgate"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        # What it would record are the requests that come as far as its routing; the edge records all of them, once.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    access = Access(settings)
    operations = Operations(settings, fleet, registry)
    rollouts = RolloutOperations(operations, fleet, registry, conductor)
    changes = admin_route(access, operations, registry)
    predict = PredictApplication(router, shadows, receipts, prediction_log, access, metrics, predict_limits(settings))
    feedback = Feedback(fleet, ledger, receipts, prediction_log, settings.feedback_seconds)
    facts = {"version": app.version, "backend": settings.backend, "objective_ms": settings.latency_objective_ms}
    feed = Feed(Observer(fleet, registry, metrics, PATH, facts).look)
    profiling = Profiling(fleet, backend, operations, registry, settings.backend_timeout_ms)
    for routes in (
        predict_routes(predict),
        model_routes(fleet, registry, router, shadows),
        quality_routes(router),
        control_routes(changes, operations, registry),
        profile_routes(changes, profiling),
        rollout_routes(changes, rollouts, settings.latency_objective_ms),
        rollout_views(rollouts, registry, ledger),
        event_routes(registry),
        feedback_routes(access, feedback),
        health_routes(fleet, router, pages),
        status_routes(feed, asks_for_key=access.asks_for_key),
    ):
        app.include_router(routes)
    access_log = AccessLog(settings.log_level, settings.slow_request_ms)
    return Edge(app, {("POST", PATH): predict}, metrics, access_log, tracing)


def predict_limits(settings: Settings) -> PredictLimits:
    """Return what one request may ask for."""
    return PredictLimits(
        body=BodyLimits(settings.max_body_bytes, settings.max_images, settings.body_timeout_seconds),
        max_buffered_bytes=settings.max_buffered_bytes,
        deadline_ms=settings.deadline_ms,
        max_deadline_ms=settings.max_deadline_ms,
    )
