"""What is served: models, their versions and traffic, and what the archives say of themselves."""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from service.domain.model_state import ModelState
from service.http.openapi import ETAG
from service.http.problems import ReadCheck, problem_responses
from service.http.schemas.admin import ShadowInfo, ShadowList
from service.http.schemas.predict import ModelInfo, ModelList, TrafficInfo, VersionInfo
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.serving.router import Router
from service.serving.shadow_traffic import Comparison, Shadows


def model_routes(
    reconciler: Reconciler, registry: Registry, router: Router, shadows: Shadows, may_read: ReadCheck
) -> APIRouter:
    """Return the routes that show the reconciler."""
    routes = APIRouter(tags=["models"])
    answers: dict[int | str, dict[str, Any]] = {200: {"headers": ETAG}, **problem_responses(404, 503)}

    @routes.get("/models")
    async def models(request: Request) -> ModelList:
        """List every model with its traffic, its versions, their state and their contracts."""
        served, is_reader = sorted(reconciler.view.model_versions.items()), may_read(request.scope)
        return ModelList(
            models=[_model_info(registry.models[name], versions.values(), is_reader) for name, versions in served]
        )

    @routes.get("/models/{model}", responses=answers)
    async def model(model: str, request: Request, response: Response) -> ModelInfo:
        """Show one model with its traffic, its versions, their state and their contracts."""
        versions = router.versions(model).values()
        return _model_info(registry.models[model], versions, may_read(request.scope), response)

    @routes.get("/models/{model}/traffic", responses=answers)
    async def traffic(model: str, response: Response) -> TrafficInfo:
        """Show a model's traffic policy. A change needs its ETag as If-Match."""
        router.versions(model)
        return traffic_info(registry.models[model], response)

    @routes.get("/models/{model}/shadows", responses=problem_responses(404, 503))
    async def shadow_report(model: str) -> ShadowList:
        """Compare the shadows' answers with the callers', since this gateway started to copy requests."""
        router.versions(model)
        return ShadowList(shadows=[_shadow_info(comparison) for comparison in shadows.report(model)])

    return routes


def _shadow_info(comparison: Comparison) -> ShadowInfo:
    later = comparison.latency_difference
    latency_difference_ms = None if later is None else later * 1000
    return ShadowInfo(**vars(comparison), agreement=comparison.agreement, latency_difference_ms=latency_difference_ms)


def traffic_info(state: ModelState, response: Response | None = None) -> TrafficInfo:
    """Return a model's traffic as it is shown, and put its revision into the response."""
    if response is not None:
        response.headers["etag"] = f'"{state.revision}"'
    return TrafficInfo(model=state.model, **state.shown())


def version_info(model_version: ModelVersion, state: ModelState, *, may_read: bool) -> VersionInfo:
    """Return a version as it is shown to a caller who may read details, or may not."""
    version = model_version.target.version
    weights = {} if state.policy is None else state.policy.weights
    return VersionInfo(
        version=version,
        state=model_version.state,
        reason=model_version.shown_reason.told(may_read=may_read),
        default=version == max(weights, key=lambda each: weights[each], default=None),
        weight=weights.get(version, 0.0),
        labels=sorted(label for label, labelled in state.labels.items() if labelled == version),
        num_workers=model_version.num_workers,
        sha256=model_version.archive.sha256,
        contract=model_version.contract.summary(),
    )


def _model_info(
    state: ModelState, model_versions: Iterable[ModelVersion], may_read: bool, response: Response | None = None
) -> ModelInfo:
    versions = [version_info(model_version, state, may_read=may_read) for model_version in model_versions]
    return ModelInfo(model=state.model, traffic=traffic_info(state, response), versions=versions)
