"""How good a model's versions are in service: what they answered last, whether it drifts, what feedback says."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from service.http.problems import problem_responses
from service.monitoring.drift import DriftKind
from service.monitoring.drift_monitor import DriftMonitor, DriftState
from service.serving.model_version import ModelVersion
from service.serving.router import Router


class ScoreInfo(BaseModel):
    """How far one distribution is from the contract's reference."""

    kind: DriftKind = Field(description="class (population stability index) or confidence (Kolmogorov-Smirnov).")
    value: float
    threshold: float = Field(description="What the settings say, or what sampling noise can reach if that is more.")


class ClassInfo(BaseModel):
    """How often a class is answered."""

    label: str
    share: float | None = Field(description="Of the window's images; null while it holds none.")
    reference_share: float | None = Field(description="Of the validation images; null where the contract is silent.")


class FeedbackSum(BaseModel):
    """What became of the answers that somebody gave the right label for, since the version was loaded."""

    num_labelled: int
    accuracy: float | None = Field(description="Share of them that were right; null while there is none.")


class VersionQuality(BaseModel):
    """How good one version is in service, as far as the process that answers has seen."""

    version: str
    state: DriftState = Field(
        description="drifting from a score over its threshold until every one is under 0.8 of it; unknown without one."
    )
    reason: str = Field(description="Why there is no score; empty if there is.")
    window_items: int = Field(description="Last images that the scores and shares are of; moves by a tenth.")
    window_seconds: float = Field(description="Time since the first of them.")
    scores: list[ScoreInfo]
    classes: list[ClassInfo]
    feedback: FeedbackSum


class ModelQuality(BaseModel):
    """How good a model's versions are in service, most traffic first."""

    model: str
    versions: list[VersionQuality]


def quality_routes(router: Router) -> APIRouter:
    """Return the route that shows it."""
    routes = APIRouter(tags=["models"])

    @routes.get("/models/{model}/quality", responses=problem_responses(404, 503))
    async def quality(model: str) -> ModelQuality:
        """Show the quality of each version's recent answers: classes, drift and feedback."""
        model_versions = router.versions(model).values()
        found = [_version_quality(each, each.quality) for each in model_versions if each.quality is not None]
        return ModelQuality(model=model, versions=found)

    return routes


def _version_quality(model_version: ModelVersion, monitor: DriftMonitor) -> VersionQuality:
    monitor.count()  # what came just now
    window, contract, counts = monitor.window, model_version.contract, model_version.counts
    expected = contract.reference.class_shares if contract.reference else (None,) * len(contract.classes)
    shares = [count / window.num_items if window.num_items else None for count in window.class_counts]
    return VersionQuality(
        version=model_version.target.version,
        state=monitor.state,
        reason=monitor.reason,
        window_items=window.num_items,
        window_seconds=round(window.seconds, 3),
        scores=[ScoreInfo(kind=each.kind, value=each.value, threshold=each.threshold) for each in monitor.scores],
        classes=[
            ClassInfo(label=label, share=share, reference_share=reference_share)
            for label, share, reference_share in zip(contract.classes, shares, expected, strict=True)
        ],
        feedback=FeedbackSum(
            num_labelled=counts.num_labelled,
            accuracy=1 - counts.num_wrong / counts.num_labelled if counts.num_labelled else None,
        ),
    )
