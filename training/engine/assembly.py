"""A training, put together from a config: network, optimizer, data, strategy."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Optimizer

from training.artifacts import Run
from training.data.dataset import Dataset, load_split
from training.data.open_batches import open_batches
from training.engine.averaging import build_average
from training.engine.checkpoint import seed_all
from training.engine.engine import Engine, num_steps
from training.engine.interruption import Interruption
from training.engine.schedule import build_schedule
from training.engine.step import Inputs, Stepper, autocast
from training.errors import SettingError
from training.models.resnet import build_model
from training.models.serving_graph import Normalize
from training.options.config import TrainConfig
from training.options.execution import ExecutionOptions, check_train
from training.parallel.strategy import Strategy


def build_engine(
    run: Run,
    dataset: Dataset,
    config: TrainConfig,
    execution: ExecutionOptions,
    strategy: Strategy,
    stack: ExitStack,
    network: nn.Module | None = None,
    option_prefix: str = "",
) -> Engine:
    """Return a training at its beginning, of this network or a new one; the stack ends what it needs while it runs.

    Raises SettingError for what the strategy's device cannot do, or has no meaning with these images.
    """
    check_train(config, strategy.world.device, is_stream=dataset.stream is not None)
    source = open_batches(
        run,
        dataset,
        config,
        shard=strategy.shard,
        num_shards=strategy.num_shards,
        device=strategy.world.device,
    )
    steps_per_epoch = num_steps(source, config.accumulation)
    stepper = build_stepper(dataset, config, execution, strategy, steps_per_epoch, network)
    stepper.option_prefix = option_prefix
    return Engine(stepper, source, load_split(run, "validation"), stack.enter_context(Interruption()))


def build_stepper(
    dataset: Dataset,
    config: TrainConfig,
    execution: ExecutionOptions,
    strategy: Strategy,
    steps_per_epoch: int,
    network: nn.Module | None = None,
) -> Stepper:
    """Return what takes a training's steps; raises SettingError for what the strategy's device cannot do."""
    network = strategy.place(build_network(dataset, config) if network is None else network)
    if execution.torch_compile:
        compile_network(network, strategy.world.device)
    optimizer = strategy.make_optimizer(network, lambda placed: build_optimizer(placed, config))
    return Stepper(
        strategy=strategy,
        network=network,
        inputs=Inputs(strategy, Normalize(dataset.mean, dataset.std).to(strategy.world.device), config.channels_last),
        optimizer=optimizer,
        schedule=build_schedule(optimizer, config, steps_per_epoch),
        scaler=GradScaler(strategy.world.device.type, enabled=config.precision == "fp16"),
        average=build_average(network, config.ema_decay),
        autocast=autocast(config.precision, strategy.world.device),
        config=config,
        detect_anomaly=execution.detect_anomaly,
    )


def build_network(dataset: Dataset, config: TrainConfig) -> nn.Module:
    """Return the network on the CPU, in its layout, its weights decided by the seed."""
    seed_all(config.seed)
    network: nn.Module = build_model(config.architecture, num_classes=len(dataset.classes), channels=dataset.channels)
    if config.channels_last:
        # Convolutions on a CPU are about a third faster in this layout.
        return network.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]
    return network


def build_optimizer(network: nn.Module, config: TrainConfig) -> Optimizer:
    """Return SGD over the parameters that are there."""
    return SGD(
        parameter_groups(network, config.weight_decay),
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=True,
    )


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the parameters in two groups: kernels and matrices decay; biases and batch norms, vectors, do not."""
    parameters = list(network.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def compile_network(network: nn.Module, device: torch.device) -> None:
    """Compile the network's calls when they are first made, in place, so that the names of its weights stay.

    Raises SettingError where this machine cannot compile for the device.
    """
    # It takes a second to load.
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415

    try:
        # The smallest thing there is: what is missing shows before the network is traced.
        torch.compile(_one_more)(torch.ones(1, device=device))
    except TorchDynamoException as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingError(
            f"--torch-compile cannot be done here: {reason}; on a CPU it needs a C++ compiler (g++, or what CXX names) "
            "and Python's headers, on a GPU Triton"
        ) from error
    network.compile()


def _one_more(values: Tensor) -> Tensor:
    return values + 1
