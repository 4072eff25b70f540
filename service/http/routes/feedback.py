"""POST /feedback: the right class of an image that was classified."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from service.admin.access import Access
from service.admin.feedback import Feedback
from service.http.admin_route import CREDENTIALS, GUARDED, guarded_route, request_headers
from service.http.problems import problem_responses
from service.http.schemas.admin import FeedbackChange, FeedbackInfo


def feedback_routes(access: Access, feedback: Feedback) -> APIRouter:
    """Return the route; it asks for the same key as predictions do."""

    @asynccontextmanager
    async def guard(request: Request, _: APIRoute) -> AsyncIterator[None]:
        context = request.scope["state"]["context"]
        caller = access.require_caller(context.headers, context.client.address)
        if access.asks_for_key:
            context.caller, context.is_reader = caller.name, "read" in caller.scopes
        yield

    routes = APIRouter(tags=["feedback"], route_class=guarded_route(guard))

    needed = CREDENTIALS if access.asks_for_key else []

    @routes.post("/feedback", responses={**GUARDED, **problem_responses(404, 409, 410)}, dependencies=needed)
    async def give(request: Request, body: FeedbackChange) -> FeedbackInfo:
        """Report an image's true class. Each image of an answer counts once, for the version that answered."""
        client = request.scope["state"]["context"].client
        is_trusted = access.may_judge(request_headers(request), client.address, client.certificate)
        taken = await feedback.take(body.id, body.index, body.label, is_trusted=is_trusted)
        return FeedbackInfo(**vars(taken.record), correct=taken.record.is_correct, judged=taken.is_judged)

    return routes
