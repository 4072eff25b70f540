"""The verb that finds the weights."""

from contextlib import ExitStack
from dataclasses import asdict, replace

import torch

from training.artifacts import Run, read_json, write_json
from training.data.dataset import Dataset, load_dataset
from training.engine.assembly import build_engine
from training.engine.checkpoint import Checkpoints
from training.engine.engine import Engine
from training.engine.history import EpochRecord, Follower, NoTrackers
from training.engine.training_loop import TrainingLoop
from training.errors import StorageError
from training.lock import held
from training.models.resnet import build_model
from training.models.weights import WeightsCard, save_card, save_weights
from training.options.config import TrainConfig, config_from
from training.options.execution import ExecutionOptions
from training.parallel.single import SingleProcess
from training.parallel.strategy import Strategy


def train(
    run: Run,
    config: TrainConfig,
    execution: ExecutionOptions | None = None,
    *,
    resume: bool = False,
    strategy: Strategy | None = None,
    follower: Follower | None = None,
) -> None:
    """Leave the weights of the best epoch on the validation split, their sidecar and the history in the run.

    One process and one thread count give bit-equal weights for the same config, interrupted and resumed or not.
    Its config is written into the run's, and older checkpoints are removed, once nothing was refused.
    The follower is told of each epoch in the main process.
    Raises NonFiniteLossError, with place and module, when numbers become NaN or infinite, Interrupted after a signal.
    """
    execution, follower = execution or ExecutionOptions(), follower or NoTrackers()
    strategy = strategy or SingleProcess(execution.torch_device())
    dataset = load_dataset(run)

    def begin() -> None:
        if run.weights.is_dir():  # better now than after the last epoch
            raise StorageError(f"{run.weights} cannot be written: Is a directory")
        recorded = config_from(read_json(run.config, written_by="prepare"))
        write_json(run.config, replace(recorded, train=config))
        # They go on from weights that will not be there any more.
        Checkpoints(run.qat.checkpoints, execution.keep_checkpoints).clear()

    with ExitStack() as stack:
        if strategy.world.is_main:
            stack.enter_context(held(run.folder, "--run"))
        engine = build_engine(run, dataset, config, execution, strategy, stack)
        loop = TrainingLoop(run, engine, execution, follower, f"train --run {run.folder}")
        best = loop.train(begin, resume=resume)
        if strategy.world.is_main:
            _save(run, dataset, engine, best)


def _save(run: Run, dataset: Dataset, engine: Engine, best: EpochRecord) -> None:
    config = engine.stepper.config
    digest = save_weights(run, engine.kept)
    with torch.device("meta"):
        whole = build_model(config.architecture, num_classes=len(dataset.classes), channels=dataset.channels)
    card = WeightsCard(
        architecture=config.architecture,
        num_parameters=sum(parameter.numel() for parameter in whole.parameters()),
        classes=dataset.classes,
        channels=dataset.channels,
        height=dataset.height,
        width=dataset.width,
        mean=dataset.mean,
        std=dataset.std,
        dataset=dataset.source,
        seed=config.seed,
        epoch=best.epoch,
        validation_accuracy=best.validation_accuracy,
        validation_loss=best.validation_loss,
        torch_version=torch.__version__,
        sha256=digest,
        train=asdict(config),
    )
    save_card(run, card)
    print(f"kept epoch {best.epoch}: validation accuracy {best.validation_accuracy:.4f}")
