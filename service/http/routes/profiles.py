"""Profiles of versions over HTTP, as a table or as a file for a trace viewer."""

import base64

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from service.admin.profiling import Profiling
from service.domain.profile import ProfileChange, ProfileInfo
from service.http.admin_route import CHANGES, GUARDED, Name, asked
from service.http.problems import problem_responses

GZIP = "application/gzip"


def profile_routes(route_class: type[APIRoute], profiling: Profiling) -> APIRouter:
    """Return the route that takes profiles; `route_class` sees to it that the caller may."""
    refusals = {**GUARDED, **problem_responses(404, 409, 504)}
    routes = APIRouter(tags=["control"], route_class=route_class, dependencies=CHANGES, responses=refusals)
    answer = {"content": {GZIP: {}}, "description": "The table, or the trace alone for `Accept: application/gzip`."}

    @routes.post(
        "/models/{model}/versions/{version}/profile",
        name="profile",
        responses={200: answer},
        response_model=ProfileInfo,
    )
    async def profile(model: Name, version: Name, body: ProfileChange, request: Request) -> ProfileInfo | Response:
        """Profile a version's next batches: the share of time of each operator."""
        as_file = GZIP in request.headers.get("accept", "")
        change = body.model_copy(update={"trace": body.trace or as_file})
        info = await profiling.take(asked(request), model, version, change)
        if not as_file or info.trace is None:
            return info
        name = f"{model}-{version}-trace.json.gz"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(base64.b64decode(info.trace), media_type=GZIP, headers=headers)

    return routes
