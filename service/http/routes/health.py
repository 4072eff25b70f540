"""Whether the process lives, whether it can answer, and what it has measured."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry

from service.errors.gateway import Draining, NotReady
from service.http.problems import ReadCheck, problem_response, problem_responses
from service.http.schemas.predict import Health
from service.process.lifecycle import Lifecycle
from service.telemetry.prometheus_text import expose

PAGES = {name: {"schema": {"type": "string"}} for name in ("text/plain", "application/openmetrics-text")}


def health_routes(
    lifecycle: Lifecycle, metrics: CollectorRegistry, reads: Mapping[str, Any], may_read: ReadCheck
) -> APIRouter:
    """Return the routes for probes, which are open, and for Prometheus, which is a reader."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def healthz() -> Health:
        """Answer 200 while the process runs."""
        return Health(status="ok")

    @routes.get("/readyz", responses=problem_responses(503), response_model=Health)
    async def readyz(request: Request) -> Health | Response:
        """Answer 200 while the default model is ready, else 503 with the reason; also 503 while the gateway stops."""
        if lifecycle.is_stopping:
            return problem_response(Draining(), request.scope)
        try:
            lifecycle.readiness.require()
        except NotReady as error:
            return problem_response(error, request.scope, may_read)
        waiting_for = lifecycle.readiness.waiting_for
        reason = waiting_for.told(may_read=may_read(request.scope)) if waiting_for.whole else ""
        return Health(status="ready", reason=reason)

    answers = {200: {"content": PAGES}, **reads.get("responses", {})}

    @routes.get("/metrics", response_class=Response, dependencies=reads.get("dependencies"), responses=answers)
    async def scrape(request: Request) -> Response:
        """Return the metrics in the format that the scraper asks for."""
        body, content_type = await expose(metrics, request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    return routes
