"""The losses of the first steps under each strategy, for the test that compares them; run in processes by torchrun."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from training.artifacts import Run
from training.data.batches import ArrayBatches
from training.data.dataset import load_dataset, load_split
from training.engine.assembly import parameter_groups
from training.engine.schedule import build_schedule
from training.models.resnet import build_model
from training.models.serving_graph import Normalize
from training.options.config import AugmentConfig, TrainConfig
from training.options.parallel import ParallelOptions
from training.parallel.build import among
from training.parallel.pipelines import stages
from training.parallel.process_exit import leave_after
from training.parallel.strategy import Pass, Strategy
from training.parallel.world import joined

NUM_STEPS = 20
CPU = torch.device("cpu")


@dataclass
class Curve:
    """What a strategy did; `network` and `optimizer` are whole states after the last step, on the main process."""

    losses: list[float]
    norms: list[float]
    validation: tuple[float, int]
    network: dict[str, Tensor]
    optimizer: dict[str, Any]
    again: float
    """The loss of one more step, of a new network that took these states."""


def curve(run: Run, strategy: Strategy, *, accumulation: int = 1, as_shards: int = 1) -> Curve:
    """Train for some steps of one order of images; accumulation takes a batch in parts, as pipelines do.

    A part has images of each shard; one process that trains as several do puts its parts together from so many.
    """
    dataset = load_dataset(run)
    normalize = Normalize(dataset.mean, dataset.std)
    batches = batches_for(run, strategy)

    def begin() -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        plain = build_model("resnet20", num_classes=len(dataset.classes), channels=dataset.channels).double()
        network = strategy.place(plain.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        optimizer = strategy.make_optimizer(
            network, lambda placed: SGD(parameter_groups(placed, 5e-4), lr=0.02, momentum=0.9, nesterov=True)
        )
        network.train()
        return network, optimizer, build_schedule(optimizer, TrainConfig("resnet20", epochs=2), NUM_STEPS)

    def split(values: Tensor) -> list[Tensor]:
        shards = [each.chunk(stages.num_parts(len(each), accumulation)) for each in values.chunk(as_shards)]
        return [torch.cat(part) for part in zip(*shards, strict=True)]

    def step(network: Any, optimizer: Any, schedule: Any) -> tuple[float, float]:
        batch = next(batches)
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        weight = torch.tensor(1 / batch.num_images)
        parts = list(zip(split(batch.images), split(batch.labels), strict=True))
        for index, (images, labels) in enumerate(parts, start=1):
            how = Pass(cross_entropy, weight, torch.enable_grad, last=index == len(parts))
            loss += strategy.forward_backward(network, normalize(images).double(), labels, how).loss
        norm = strategy.clip_gradients(network, optimizer, 1.0)
        optimizer.step()
        schedule.step()
        return float(strategy.world.sum(loss)) / batch.num_images, float(norm)

    state = begin()
    network, optimizer, schedule = state
    taken = [step(*state) for _ in range(NUM_STEPS)]
    validation = validate(run, strategy, network, lambda images: normalize(images).double())
    states = strategy.state_dict(network), strategy.optimizer_state(network, optimizer)
    (weights, moments), *_ = strategy.world.gather(states)
    renewed = begin()
    strategy.load_state_dict(renewed[0], weights)
    strategy.load_optimizer_state(renewed[0], renewed[1], moments)
    renewed[2].load_state_dict(schedule.state_dict())
    again, _ = step(*renewed)
    return Curve([loss for loss, _ in taken], [norm for _, norm in taken], validation, weights, moments, again)


def batches_for(run: Run, strategy: Strategy) -> Iterator[Any]:
    """Give batches of one epoch after the other."""
    source = ArrayBatches(
        *load_split(run, "train"),
        batch_size=16,
        augment=AugmentConfig(translation=0.05),
        seed=0,
        shard=strategy.shard,
        num_shards=strategy.num_shards,
    )
    while True:
        yield from source


def validate(run: Run, strategy: Strategy, network: Any, normalize: Callable[[Tensor], Tensor]) -> tuple[float, int]:
    """Return the loss and the number of right answers; the last part is too small for all to have a share."""
    images, labels = load_split(run, "validation")
    network.eval()
    total = torch.zeros(2, dtype=torch.float64)
    last = len(images) - 1
    for part in (slice(0, last), slice(last, None)):
        mine = [torch.tensor_split(each[part], strategy.num_shards)[strategy.shard] for each in (images, labels)]
        how = Pass(cross_entropy, torch.ones(()), torch.enable_grad)
        total += torch.stack(strategy.evaluate(network, normalize(mine[0]), mine[1], how))
    network.train()
    loss, num_correct = strategy.world.sum(total).tolist()
    return loss / len(images), int(num_correct)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


def main(folder: str, out: str, *each: str) -> int:
    """Write the curves of strategies, given as NAME-of-MICRO_BATCHES-of-ACCUMULATION; 0 has no micro-batches."""
    torch.set_num_threads(1)
    with joined(CPU, "auto") as world:
        for setting in each:
            name, parts, accumulation = setting.split("-of-")
            options = ParallelOptions(strategy=name, micro_batches=int(parts) or None)  # type: ignore[arg-type]
            with among(options, world) as strategy:
                result = curve(Run(Path(folder)), strategy, accumulation=int(accumulation))
            if world.is_main:
                torch.save(asdict(result), Path(out) / f"{setting}.pt")
    return 0


if __name__ == "__main__":
    leave_after(lambda: main(*sys.argv[1:]))
