"""The stage that finds the weights."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from training.artifacts import Run, write_json
from training.config import TrainConfig
from training.data.augment import augment
from training.data.dataset import load_dataset, load_split
from training.errors import NonFiniteLossError
from training.model import build_model
from training.schedule import warmup_then_cosine
from training.serving_graph import Normalize
from training.weights import WeightsCard, save_card, save_weights

EVALUATION_BATCH_SIZE = 64


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did; losses are mean cross entropies, training figures are of augmented images."""

    epoch: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float

    def better_than(self, other: "EpochRecord | None") -> bool:
        """Tell whether this epoch's weights are the ones to keep: by accuracy, among equals by loss."""
        if other is None:
            return True
        return (self.validation_accuracy, -self.validation_loss) > (other.validation_accuracy, -other.validation_loss)


def train(run: Run, config: TrainConfig) -> None:
    """Leave the weights of the best epoch on the validation split, their sidecar and the history in the run.

    One process and one thread count give bit-equal weights for the same config.
    Raises NonFiniteLossError, with epoch and step, when the loss is NaN or infinite.
    """
    dataset = load_dataset(run)
    training, validation = load_split(run, "train"), load_split(run, "validation")
    torch.manual_seed(config.seed)
    network: nn.Module = build_model(config.architecture, num_classes=len(dataset.classes), channels=dataset.channels)
    # Convolutions on a CPU are about a third faster in this layout.
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    normalize = Normalize(dataset.mean, dataset.std)
    optimizer = SGD(
        parameter_groups(network, config.weight_decay),
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=True,
    )
    num_steps = config.epochs * num_batches(len(training[0]), config.batch_size)
    schedule = LambdaLR(optimizer, warmup_then_cosine(num_steps, config.warmup))
    generator = Generator().manual_seed(config.seed)

    best: EpochRecord | None = None
    digest = ""
    history: list[EpochRecord] = []
    for epoch in range(1, config.epochs + 1):
        start = time.perf_counter()
        learning_rate = float(schedule.get_last_lr()[0])
        loss, accuracy = _train_epoch(
            epoch,
            network=network,
            normalize=normalize,
            split=training,
            optimizer=optimizer,
            schedule=schedule,
            generator=generator,
            config=config,
        )
        validation_loss, validation_accuracy = validate(network, normalize, *validation)
        seconds = time.perf_counter() - start
        if not math.isfinite(validation_loss):
            raise NonFiniteLossError(f"the validation loss became {validation_loss} after epoch {epoch}")
        record = EpochRecord(epoch, learning_rate, loss, accuracy, validation_loss, validation_accuracy, seconds)
        history.append(record)
        if record.better_than(best):
            best = record
            digest = save_weights(run, {name: value.contiguous() for name, value in network.state_dict().items()})
        print(
            f"epoch {epoch}/{config.epochs}: loss {loss:.4f}, accuracy {accuracy:.4f}; validation: loss "
            f"{validation_loss:.4f}, accuracy {validation_accuracy:.4f}; {seconds:.1f} s",
            flush=True,
        )
    assert best is not None, "there is at least one epoch"
    write_json(run.history, {"kept_epoch": best.epoch, "epochs": [asdict(record) for record in history]})
    card = WeightsCard(
        architecture=config.architecture,
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
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


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the parameters in two groups: kernels and matrices decay; biases and batch norms, vectors, do not."""
    parameters = list(network.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def num_batches(num_images: int, batch_size: int) -> int:
    """Return the number of training batches in an epoch."""
    return len(batch_bounds(num_images, batch_size))


def batch_bounds(num_images: int, batch_size: int) -> list[tuple[int, int]]:
    """Return [start, stop) of each batch; a last batch of a single image, which batch norm cannot use, joins its
    predecessor.
    """
    starts = list(range(0, num_images, batch_size))
    if len(starts) > 1 and num_images - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_images], strict=True))


def validate(network: nn.Module, normalize: Normalize, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return mean cross entropy and accuracy of the network, in eval mode, on uint8 [N, C, H, W] and int64 [N]."""
    network.eval()
    loss, num_correct = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(images), EVALUATION_BATCH_SIZE):
            part = slice(start, start + EVALUATION_BATCH_SIZE)
            logits = network(normalize(images[part]).contiguous(memory_format=torch.channels_last))
            loss += float(F.cross_entropy(logits, labels[part], reduction="sum"))
            num_correct += int((logits.argmax(dim=1) == labels[part]).sum())
    return loss / len(images), num_correct / len(images)


def _train_epoch(
    epoch: int,
    *,
    network: nn.Module,
    normalize: Normalize,
    split: tuple[Tensor, Tensor],
    optimizer: SGD,
    schedule: LambdaLR,
    generator: Generator,
    config: TrainConfig,
) -> tuple[float, float]:
    """Take one pass over the images in a fresh order; return mean loss and accuracy."""
    network.train()
    total_loss, num_correct, num_seen = 0.0, 0, 0
    batches = _batches(*split, config.batch_size, generator)
    total = num_batches(len(split[0]), config.batch_size)
    # disable=None: the bar is for terminals, a log gets one line per epoch.
    bar = tqdm(batches, total=total, desc=f"epoch {epoch}/{config.epochs}", disable=None, leave=False)
    for step, (images, labels) in enumerate(bar, start=1):
        pixels = normalize(augment(images, config.augment, generator))
        logits = network(pixels.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits, labels)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"the loss became {value} in epoch {epoch}, step {step} of {total}; "
                f"a smaller --learning-rate than {config.learning_rate} may help"
            )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        total_loss += value * len(images)
        num_correct += int((logits.argmax(dim=1) == labels).sum())
        num_seen += len(images)
        bar.set_postfix(loss=f"{total_loss / num_seen:.4f}", accuracy=f"{num_correct / num_seen:.4f}", refresh=False)
    return total_loss / num_seen, num_correct / num_seen


def _batches(images: Tensor, labels: Tensor, batch_size: int, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(images), generator=generator)
    for start, stop in batch_bounds(len(images), batch_size):
        part = order[start:stop]
        yield images[part], labels[part]
