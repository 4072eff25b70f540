"""Changes of versions, traffic and labels, each for those alone who may, and the log of them."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute

from service.admin.versions import Operations
from service.domain.model_state import Event
from service.errors.reason import DETAILS
from service.http.admin_route import (
    CHANGES,
    GUARDED,
    Name,
    asked,
    described_condition,
    described_revision,
)
from service.http.openapi import ETAG
from service.http.problems import ReadCheck, problem_responses
from service.http.routes.models import traffic_info, version_info
from service.http.schemas.admin import EventInfo, EventList, LabelChange, TrafficChange, VersionRegister, VersionScale
from service.http.schemas.predict import TrafficInfo, VersionInfo
from service.persistence.registry import Registry

CONDITIONAL: dict[int | str, dict[str, Any]] = {200: {"headers": ETAG}, **problem_responses(412, 428)}
MOST_EVENTS = 2**63 - 1  # that a database can number
BASED = [Depends(described_condition)]
LabelName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,31}$", description="Such as stable or canary.")]


def control_routes(route_class: type[APIRoute], operations: Operations, registry: Registry) -> APIRouter:
    """Return the routes that change things; `route_class` sees to it that the caller may."""
    refusals = {**GUARDED, **problem_responses(404, 409)}
    routes = APIRouter(tags=["control"], route_class=route_class, dependencies=CHANGES, responses=refusals)

    @routes.post("/models/{model}/versions", status_code=201)
    async def register(model: Name, body: VersionRegister, request: Request) -> VersionInfo:
        """Load an archive from the model store and run its self-check. The version gets no traffic yet."""
        model_version = await operations.register(asked(request), model, body.file, body.num_workers)
        return version_info(model_version, registry.models[model], may_read=True)

    @routes.patch("/models/{model}/versions/{version}")
    async def scale(model: Name, version: Name, body: VersionScale, request: Request) -> VersionInfo:
        """Change a version's number of workers."""
        model_version = await operations.scale(asked(request), model, version, body.num_workers)
        return version_info(model_version, registry.models[model], may_read=True)

    @routes.delete("/models/{model}/versions/{version}", status_code=204)
    async def unregister(model: Name, version: Name, request: Request) -> None:
        """Drain and unload a version without traffic."""
        await operations.unregister(asked(request), model, version)

    @routes.put("/models/{model}/traffic", name="traffic", responses=CONDITIONAL, dependencies=BASED)
    async def put_traffic(model: Name, body: TrafficChange, request: Request, response: Response) -> TrafficInfo:
        """Divide a model's requests among its versions. Needs If-Match."""
        state = await operations.set_traffic(asked(request), model, body.weights, body.sticky_header, body.shadows)
        return traffic_info(state, response)

    @routes.put("/models/{model}/labels/{label}", name="label", responses=CONDITIONAL, dependencies=BASED)
    async def put_label(
        model: Name, label: LabelName, body: LabelChange, request: Request, response: Response
    ) -> TrafficInfo:
        """Point a label at a ready version. Needs If-Match."""
        return traffic_info(await operations.set_label(asked(request), model, label, body.version), response)

    @routes.delete("/models/{model}/labels/{label}", name="unlabel", responses=CONDITIONAL, dependencies=BASED)
    async def delete_label(model: Name, label: LabelName, request: Request, response: Response) -> TrafficInfo:
        """Remove a label. Needs If-Match."""
        return traffic_info(await operations.delete_label(asked(request), model, label), response)

    @routes.post(
        "/models/{model}/rollback",
        responses={200: {"headers": ETAG}, **problem_responses(412)},
        dependencies=[Depends(described_revision)],
    )
    async def rollback(model: Name, request: Request, response: Response) -> TrafficInfo:
        """Return all traffic to the version that last had 100 %."""
        return traffic_info(await operations.roll_back(asked(request), model), response)

    return routes


def event_routes(registry: Registry, may_read: ReadCheck) -> APIRouter:
    """Return the route that shows the log."""
    routes = APIRouter(tags=["control"])

    @routes.get("/models/{model}/events", responses=problem_responses(404, 422, 503))
    async def events(
        model: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
        before: Annotated[
            int | None, Query(ge=1, le=MOST_EVENTS, description="Only events older than the one of this id.")
        ] = None,
    ) -> EventList:
        """List changes and refusals with actor, time and reason, the newest first."""
        registry.state(model)
        is_reader = may_read(request.scope)
        return EventList(events=[_event_info(event, is_reader) for event in await registry.log(model, limit, before)])

    return routes


def _event_info(event: Event, may_read: bool) -> EventInfo:
    time = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    shown = {**vars(event), **vars(event.entry), "time": time}
    if not may_read:  # a gateway's name begins with its host's
        shown |= {"gateway": "", "detail": DETAILS if event.detail else ""}
    return EventInfo(**shown)
