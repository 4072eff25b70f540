"""Guarded rollouts over HTTP."""

from datetime import UTC, datetime

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

from service.admin.rollouts import RolloutOperations
from service.domain.rollout import GUARDS, Progress, Rollout, RolloutSpec, samples
from service.http.admin_route import CHANGES, GUARDED, Name, asked, described_revision
from service.http.problems import problem_responses
from service.http.schemas.admin import GuardInfo, RolloutChange, RolloutInfo, RolloutList
from service.persistence.registry import Registry
from service.persistence.rollout_store import RolloutStore

MOVES = {
    "pause": "Pause at the present step. The guards keep watching.",
    "resume": "Continue with the steps.",
    "promote": "Give the new version all of the traffic now.",
    "abort": "Return all traffic to the stable version.",
}


def rollout_routes(route_class: type[APIRoute], operations: RolloutOperations, latency_objective_ms: int) -> APIRouter:
    """Return the routes that begin and move rollouts; `route_class` sees to it that the caller may."""
    routes = APIRouter(
        tags=["rollouts"],
        route_class=route_class,
        dependencies=[*CHANGES, Depends(described_revision)],
        responses={**GUARDED, **problem_responses(404, 409, 412)},
    )

    @routes.post("/models/{model}/rollouts", name="rollout", status_code=201)
    async def start(model: Name, body: RolloutChange, request: Request) -> RolloutInfo:
        """Start a guarded rollout: the version gets more traffic step by step unless a guard finds it worse."""
        given = body.model_dump(exclude_none=True)
        spec = RolloutSpec(**{"slow_ms": float(latency_objective_ms), **given, "steps": tuple(body.steps)})
        return rollout_info(await operations.start(asked(request), model, spec))

    for name, description in MOVES.items():
        path = f"/models/{{model}}/rollouts/{{rollout}}/{name}"

        @routes.post(path, name=name, description=description)
        async def move(model: Name, rollout: int, request: Request) -> RolloutInfo:
            return rollout_info(await operations.move(asked(request), model, rollout))

    return routes


def rollout_views(operations: RolloutOperations, registry: Registry, store: RolloutStore) -> APIRouter:
    """Return the routes that show rollouts."""
    routes = APIRouter(tags=["rollouts"])

    @routes.get("/models/{model}/rollouts", responses=problem_responses(404, 503))
    async def rollouts(model: str) -> RolloutList:
        """List a model's last rollouts, the newest first."""
        return RolloutList(rollouts=[rollout_info(rollout) for rollout in reversed(registry.state(model).rollouts)])

    @routes.get("/models/{model}/rollouts/{rollout}", responses=problem_responses(404, 422, 503))
    async def rollout(model: str, rollout: int) -> RolloutInfo:
        """Show a rollout: its progress and its guards' evidence."""
        found = operations.find(model, rollout)
        progress = await store.database.call_for_caller(store.progress, model, rollout)
        return rollout_info(found, progress or (Progress() if found.is_active else None))

    return routes


def rollout_info(rollout: Rollout, progress: Progress | None = None) -> RolloutInfo:
    """Return a rollout as it is shown; its guards only where something is known of them."""
    shown = {**vars(rollout.spec), **vars(progress or Progress()), **vars(rollout)}
    shown["percent"] = rollout.spec.steps[rollout.step]
    shown["started"] = _shown(rollout.started)
    shown["ended"] = _shown(rollout.ended) if rollout.ended else None
    return RolloutInfo(**shown, guards=_guards(rollout.spec, progress) if progress else [])


def _shown(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def _guards(spec: RolloutSpec, progress: Progress) -> list[GuardInfo]:
    return [
        GuardInfo(
            name=name,
            num_bad=new.num_bad,
            num_all=new.num_all,
            stable_num_bad=None if old is None else old.num_bad,
            stable_num_all=None if old is None else old.num_all,
            evidence=progress.evidence[name].e_value,
            breaks_at=len(GUARDS) / spec.error_rate,
        )
        for name in GUARDS
        for new, old in [samples(name, progress.counted)]
    ]
