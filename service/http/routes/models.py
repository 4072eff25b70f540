"""What is served: models, their versions and traffic, and what the archives say of themselves."""

from collections.abc import Iterable

from fastapi import APIRouter, Response

from service.domain.model_state import ModelState
from service.http.problems import problem_responses
from service.http.schemas.admin import ShadowInfo, ShadowList
from service.http.schemas.predict import ModelInfo, ModelList, TrafficInfo, VersionInfo
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.serving.router import Router
from service.serving.shadow_traffic import Comparison, Shadows


def model_routes(reconciler: Reconciler, registry: Registry, router: Router, shadows: Shadows) -> APIRouter:
    """Return the routes that show the reconciler."""
    routes = APIRouter(tags=["models"])

    @routes.get("/models")
    async def models() -> ModelList:
        """List every model with its traffic, its versions, their state and their contracts."""
        model_versions = reconciler.view.model_versions
        return ModelList(
            models=[
                _model_info(registry.models[name], model_versions[name].values()) for name in sorted(model_versions)
            ]
        )

    @routes.get("/models/{model}", responses=problem_responses(404, 503))
    async def model(model: str, response: Response) -> ModelInfo:
        """Show one model with its traffic, its versions, their state and their contracts."""
        model_versions = router.versions(model).values()
        info = _model_info(registry.models[model], model_versions)
        response.headers["etag"] = f'"{info.traffic.revision}"'
        return info

    @routes.get("/models/{model}/traffic", responses=problem_responses(404, 503))
    async def traffic(model: str, response: Response) -> TrafficInfo:
        """Show how a model's requests are divided; the ETag is what a change is based on."""
        router.versions(model)
        return traffic_info(registry.models[model], response)

    @routes.get("/models/{model}/shadows", responses=problem_responses(404, 503))
    async def shadow_report(model: str) -> ShadowList:
        """Compare what shadows answered with what callers were told, since this gateway began to copy."""
        router.versions(model)
        return ShadowList(shadows=[_shadow_info(comparison) for comparison in shadows.report(model)])

    return routes


def _shadow_info(comparison: Comparison) -> ShadowInfo:
    later = comparison.latency_difference
    return ShadowInfo(
        primary=comparison.primary,
        shadow=comparison.shadow,
        num_requests=comparison.num_requests,
        num_shed=comparison.num_shed,
        num_failed=comparison.num_failed,
        num_items=comparison.num_items,
        agreement=comparison.agreement,
        largest_difference=comparison.largest_difference,
        latency_difference_ms=None if later is None else later * 1000,
    )


def traffic_info(state: ModelState, response: Response | None = None) -> TrafficInfo:
    """Return a model's traffic as it is shown, and put its revision into the response."""
    policy = state.policy
    if response is not None:
        response.headers["etag"] = f'"{state.revision}"'
    return TrafficInfo(
        model=state.model,
        revision=state.revision,
        weights={} if policy is None else policy.weights,
        sticky_header=None if policy is None else policy.sticky_header,
        shadows={} if policy is None else dict(policy.shadows),
        labels=dict(state.labels),
    )


def version_info(model_version: ModelVersion, state: ModelState) -> VersionInfo:
    """Return a version as it is shown."""
    version = model_version.target.version
    weights = {} if state.policy is None else state.policy.weights
    return VersionInfo(
        version=version,
        state=model_version.state,
        reason=model_version.reason,
        default=version == max(weights, key=lambda each: weights[each], default=None),
        weight=weights.get(version, 0.0),
        labels=sorted(label for label, labelled in state.labels.items() if labelled == version),
        num_workers=model_version.num_workers,
        sha256=model_version.archive.sha256,
        contract=model_version.contract.summary(),
    )


def _model_info(state: ModelState, model_versions: Iterable[ModelVersion]) -> ModelInfo:
    versions = [version_info(model_version, state) for model_version in model_versions]
    return ModelInfo(model=state.model, traffic=traffic_info(state), versions=versions)
