"""The composition root: builds the ASGI application from the settings; its lifespan starts and stops the rest."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from service.admin.access import Access
from service.admin.directory import ClientDirectory
from service.admin.feedback import Feedback
from service.admin.profiling import Profiling
from service.admin.rollout_controller import RolloutController
from service.admin.rollouts import RolloutOperations
from service.admin.status.broadcaster import StatusBroadcaster
from service.admin.status.collector import StatusCollector
from service.admin.versions import Operations
from service.backends.factory import create_backend
from service.config.settings import Settings
from service.domain.backend import Backend, ModelControl
from service.http import openapi, problems
from service.http.admin_route import admin_route, closed_reads, read_check
from service.http.body import BodyLimits
from service.http.predict import PATH, PredictApplication, PredictLimits
from service.http.prediction import PredictionServices
from service.http.request_context import new_id
from service.http.request_middleware import RequestMiddleware
from service.http.routes.docs import docs_routes
from service.http.routes.errors import error_routes
from service.http.routes.feedback import feedback_routes
from service.http.routes.health import health_routes
from service.http.routes.models import model_routes
from service.http.routes.predict import predict_routes
from service.http.routes.profiles import profile_routes
from service.http.routes.quality import quality_routes
from service.http.routes.rollouts import rollout_routes, rollout_views
from service.http.routes.status import page_routes, status_routes
from service.http.routes.versions_and_traffic import control_routes, event_routes
from service.http.server.clients import Clients
from service.http.server.connections import Connections
from service.http.tls.certificates import NO_CERTIFICATES, Certificates, NoCertificates
from service.monitoring.prediction_log.records import NoLog, PredictionLog
from service.monitoring.signed_ids import PredictionIds
from service.persistence.archives.model_store import ModelStore
from service.persistence.database import Database
from service.persistence.feedback_store import FeedbackStore
from service.persistence.leader_lease import Lease, model_server_lease
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.persistence.rollout_store import RolloutStore
from service.persistence.signing_keys import signing_keys
from service.persistence.state_store import StateStore
from service.persistence.upkeep.retention import Retention
from service.process.lifecycle import Lifecycle
from service.serving.readiness import Readiness
from service.serving.reconciler import Reconciler
from service.serving.router import Router
from service.serving.shadow_traffic import Shadows
from service.telemetry.access_log import AccessLog
from service.telemetry.event_loop_lag import LoopLag
from service.telemetry.log_stream import STANDARD_ERROR, LogStream, StandardError
from service.telemetry.metrics import Metrics
from service.telemetry.policy_metrics import PolicyMetrics
from service.telemetry.tracing import NoTracing, Tracing

logger = logging.getLogger(__name__)

DESCRIPTION = "Serves image classifiers: batches requests, keeps model versions loaded, shows what is going on."
# Share of the usual deadline after which guards count a request without an answer as failed. Not all of it: the body's
# way here takes some.
FAIR_SHARE = 0.5


def create_app(  # noqa: PLR0915 - the composition root: one statement for each part
    settings: Settings,
    backend: Backend | None = None,
    control: ModelControl | None = None,
    lifecycle: Lifecycle | None = None,
    certificates: Certificates | NoCertificates = NO_CERTIFICATES,
    log_stream: LogStream | StandardError = STANDARD_ERROR,
) -> ASGIApp:
    """Return the gateway; a test may pass its own backend and control. `lifecycle` is shared with its server."""
    metrics = Metrics(settings.objectives)
    log_stream.count_into(metrics.log_records_dropped)
    if backend is None or control is None:
        backend, control = create_backend(settings, metrics)
    gateway_name = f"{socket.gethostname()}-{new_id()[:8]}"
    database = Database(settings.state_url, metrics.state)
    server = model_server_lease(*settings.model_server)
    server_lease = Lease(database, gateway_name, server)
    rollout_store = RolloutStore(database, gateway_name)
    prediction_ids = PredictionIds()
    prediction_log = _create_prediction_log(settings, metrics)
    registry = Registry(
        StateStore(database, gateway_name),
        settings.database_poll_seconds,
        PolicyMetrics(metrics),
        on_look=lambda: prediction_ids.use(signing_keys(database)),
    )
    store = ModelStore(settings, database, metrics)
    membership = Membership(database, gateway_name, server)
    reconciler = Reconciler(settings, store, backend, control, registry, membership, server_lease, metrics)
    router = Router(reconciler, registry, settings.default_model)
    shadows = Shadows(reconciler, registry, metrics, settings.deadline_ms)
    tracing = _create_tracing(settings, metrics, gateway_name)
    rollout_lease = Lease(database, gateway_name)
    rollout_controller = RolloutController(reconciler, registry, shadows, rollout_store, rollout_lease)
    retention = Retention(database, rollout_lease, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tracing.start()
        await reconciler.start()
        await rollout_controller.start()
        await retention.start()
        prediction_log.start()
        clients.start()
        try:
            async with LoopLag(metrics), certificates.watched(metrics), connections.watched():
                yield
        finally:
            await clients.close()
            await retention.close()
            await rollout_controller.close()
            # The server has waited drain_seconds; refuse the rest, first bodies, then batches.
            predict.close()
            await reconciler.close(drain_seconds=0)
            await asyncio.to_thread(prediction_log.close)
            await tracing.close()
            logger.info("torchgate has stopped; nothing is left in progress")

    app = FastAPI(
        title="torchgate",
        version=version("torchgate"),
        description=DESCRIPTION,
        lifespan=lifespan,
        responses=problems.problem_responses(*([404] if settings.admin_port else []), 421, 500, 503),
        redirect_slashes=False,
        docs_url=None,  # docs_routes has it, from local files
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        # RequestMiddleware records every request; FastAPI would record those again that reach its routing.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    clients = ClientDirectory(settings, metrics)
    access = Access(settings, clients, metrics)
    may_read = read_check(access)
    problems.install(app, may_read)
    openapi.describe(app)
    connections = Connections(settings, metrics)
    operations = Operations(store, reconciler, registry, settings.max_workers_per_version)
    rollouts = RolloutOperations(operations, reconciler, registry, rollout_controller)
    changes = admin_route(access, operations, registry)
    services = PredictionServices(
        shadows, prediction_ids, prediction_log, fair_seconds=FAIR_SHARE * settings.deadline_ms / 1000
    )
    limits = PredictLimits(
        BodyLimits(settings.max_body_bytes, settings.max_images, settings.body_timeout_seconds),
        settings.max_buffered_bytes,
        settings.deadline_ms,
        settings.max_deadline_ms,
    )
    predict = PredictApplication(router, services, access, metrics, limits)
    feedback = Feedback(reconciler, FeedbackStore(database), prediction_ids, prediction_log, settings.feedback_seconds)
    facts = {"version": app.version, "backend": settings.backend, "objective_ms": settings.latency_objective_ms}
    feed = StatusBroadcaster(StatusCollector(reconciler, registry, membership, metrics, PATH, facts).look)
    profiling = Profiling(reconciler, backend, operations, registry, settings.backend_timeout_ms)
    reads: dict[str, Any] = closed_reads(access) if settings.reads_need_key else {}
    for routes in (
        model_routes(reconciler, registry, router, shadows, may_read),
        quality_routes(router),
        rollout_views(rollouts, registry, rollout_store),
        event_routes(registry, may_read),
    ):
        app.include_router(routes, **reads)
    for routes in (
        predict_routes(asks_for_key=access.asks_for_key),
        control_routes(changes, operations, registry),
        profile_routes(changes, profiling),
        rollout_routes(changes, rollouts, settings.latency_objective_ms),
        feedback_routes(access, feedback),
        health_routes(
            (lifecycle or Lifecycle()).tell(Readiness(reconciler, router)), metrics.registry, reads, may_read
        ),
        status_routes(feed, reads, may_read, asks_for_key=access.asks_for_key),
        page_routes(access, reconciler),
        docs_routes(),
        error_routes(),
    ):
        app.include_router(routes)
    log = AccessLog(settings.log_level, settings.slow_request_ms, log_stream.write)
    return RequestMiddleware(app, {("POST", PATH): predict}, metrics, log, tracing, Clients(settings), connections)


def _create_prediction_log(settings: Settings, metrics: Metrics) -> PredictionLog:
    if settings.prediction_log_dir is None:
        return NoLog()
    from service.monitoring.prediction_log.log import ParquetLog  # noqa: PLC0415 - needs an extra

    return ParquetLog(
        settings.prediction_log_dir,
        settings.prediction_log_max_bytes,
        settings.prediction_log_sample,
        settings.prediction_log_inputs,
        metrics,
    )


def _create_tracing(settings: Settings, metrics: Metrics, gateway_name: str) -> Tracing:
    """Return the exporter of spans; OpenTelemetry is imported only if tracing is on."""
    if settings.tracing == "off":
        return NoTracing()
    from service.telemetry.otlp import OtlpTracing  # noqa: PLC0415

    return OtlpTracing(settings, metrics, gateway_name)
