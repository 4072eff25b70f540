"""What is served: models, their versions, and what the archives say of themselves."""

from fastapi import APIRouter

from service.api.problems import problem_responses
from service.deployment import Deployment
from service.fleet import Fleet
from service.router import Router
from service.schemas import ModelInfo, ModelList, VersionInfo


def model_routes(fleet: Fleet, router: Router) -> APIRouter:
    """Return the routes that show the fleet."""
    routes = APIRouter(tags=["models"])

    @routes.get("/models")
    async def models() -> ModelList:
        """List every model with its versions, their state and their contracts."""
        deployments = fleet.view.deployments
        return ModelList(models=[_model_info(name, list(deployments[name].values())) for name in sorted(deployments)])

    @routes.get("/models/{model}", responses=problem_responses(404, 503))
    async def model(model: str) -> ModelInfo:
        """Show one model with its versions, their state and their contracts."""
        router.find(model)
        return _model_info(model, list(fleet.view.deployments[model].values()))

    return routes


def _model_info(name: str, deployments: list[Deployment]) -> ModelInfo:
    return ModelInfo(
        model=name,
        versions=[
            VersionInfo(
                version=deployment.target.version,
                state=deployment.state,
                reason=deployment.reason,
                default=number == 0,
                sha256=deployment.archive.sha256,
                contract=deployment.contract.summary(),
            )
            for number, deployment in enumerate(deployments)
        ],
    )
