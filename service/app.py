"""The composition root: settings in, an ASGI application out; its lifespan starts and stops the rest."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from service.api import problems
from service.api.body import BodyLimits
from service.api.edge import Edge
from service.api.health import health_routes
from service.api.models import model_routes
from service.api.predict import PATH, PredictApplication, PredictLimits, predict_routes
from service.backend import Backend, ModelControl
from service.fleet import Fleet
from service.logs import AccessLog
from service.metrics import Metrics
from service.router import Router
from service.settings import Settings
from service.torchserve.grpc import GrpcBackend
from service.torchserve.management import TorchServeControl
from service.torchserve.rest import RestBackend
from service.workers.backend import Workers

logger = logging.getLogger(__name__)

DESCRIPTION = "Serves image classifiers: batches requests, keeps model versions loaded, shows what is going on."
# TorchServe kills a worker that passes its response timeout. The gateway gives up first, and says so.
RESPONSE_TIMEOUT_MARGIN_SECONDS = 30


def make_seam(settings: Settings, metrics: Metrics) -> tuple[Backend, ModelControl]:
    """Return the backend that the settings name, and its control."""
    if settings.backend == "workers":
        workers = Workers(settings, metrics)
        return workers, workers
    host = settings.torchserve_host
    control = TorchServeControl(
        f"http://{settings.torchserve_host}:{settings.torchserve_management_port}",
        load_timeout_seconds=settings.load_timeout_seconds,
        response_timeout_seconds=settings.backend_timeout_ms // 1000 + RESPONSE_TIMEOUT_MARGIN_SECONDS,
    )
    if settings.backend == "rest":
        return RestBackend(host, settings.torchserve_rest_port), control
    return GrpcBackend(f"{host}:{settings.torchserve_grpc_port}"), control


def create_app(settings: Settings, backend: Backend | None = None, control: ModelControl | None = None) -> ASGIApp:
    """Return the gateway; a test may put its own backend and control at the seam."""
    metrics = Metrics()
    if backend is None or control is None:
        backend, control = make_seam(settings, metrics)
    fleet = Fleet(settings, backend, control, metrics)
    router = Router(fleet, settings.default_model)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await fleet.start()
        try:
            yield
        finally:
            # The server has let requests end, or cut them off at drain_seconds: nobody waits for a batch any more.
            await fleet.close(drain_seconds=0)
            logger.info("torchgate has stopped; nothing is left in progress")

    app = FastAPI(
        title="torchgate",
        version=version("torchgate"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    problems.install(app)
    limits = PredictLimits(
        body=BodyLimits(settings.max_body_bytes, settings.max_images, settings.body_timeout_seconds),
        max_buffered_bytes=settings.max_buffered_bytes,
        deadline_ms=settings.deadline_ms,
        max_deadline_ms=settings.max_deadline_ms,
    )
    predict = PredictApplication(router, metrics, limits)
    app.include_router(predict_routes(predict))
    app.include_router(model_routes(fleet, router))
    app.include_router(health_routes(fleet, router, metrics))
    return Edge(app, {("POST", PATH): predict}, metrics, AccessLog(settings.log_level))
