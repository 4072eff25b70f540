"""One step: gradients of several batches are those of one, too long ones are scaled, and nothing bad gets through."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR

from training.data.batches import Batch
from training.engine.averaging import build_average
from training.engine.step import Inputs, Stepper, autocast, cross_entropy
from training.errors import NonFiniteLossError
from training.models.serving_graph import Normalize
from training.options.config import Config, TrainConfig
from training.parallel.single import SingleProcess

CPU = torch.device("cpu")


def stepper(
    network: nn.Module, config: TrainConfig, *, detect_anomaly: bool = False, scaler: GradScaler | None = None
) -> Stepper:
    strategy = SingleProcess(CPU)
    optimizer = SGD(network.parameters(), lr=config.learning_rate)
    return Stepper(
        strategy=strategy,
        network=network,
        inputs=Inputs(strategy, Normalize([0.5], [0.25]), channels_last=config.channels_last),
        optimizer=optimizer,
        schedule=ConstantLR(optimizer, factor=1),
        scaler=scaler or GradScaler("cpu", enabled=False),
        average=build_average(network, config.ema_decay),
        autocast=autocast(config.precision, CPU),
        config=config,
        detect_anomaly=detect_anomaly,
    )


def batch(num_images: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = 255 * torch.rand(num_images, 1, 4, 4, generator=generator)
    return Batch(images, torch.randint(0, 3, (num_images,), generator=generator), num_images)


def linear() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def weights(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def step(of: Stepper, batches: list[Batch], place: str = "here") -> float:
    return of.step(batches, place, stop_asked=lambda: False).loss


def test_batches_of_any_sizes_add_up_to_the_step_of_all_their_images(config: Config) -> None:
    parts = [batch(5, seed=1), batch(2, seed=2), batch(8, seed=3)]
    together = Batch(torch.cat([each.images for each in parts]), torch.cat([each.labels for each in parts]), 15)
    one, several = linear(), linear()
    assert step(stepper(one, config.train), [together]) == pytest.approx(step(stepper(several, config.train), parts))
    torch.testing.assert_close(weights(several), weights(one), rtol=0, atol=1e-6)
    assert not torch.equal(weights(one), weights(linear()))


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up(config: Config, clip_norm: float) -> None:
    options = replace(config.train, learning_rate=1.0)
    free, clipped = linear(), linear()
    step(stepper(free, options), [batch(4)])
    step(stepper(clipped, replace(options, clip_norm=clip_norm)), [batch(4)])
    start = weights(linear())
    # Plain SGD at a learning rate of 1 moves the weights by the gradient.
    norm = float((weights(free) - start).norm())
    assert 1e-3 < norm < 1e3
    assert float((weights(clipped) - start).norm()) == pytest.approx(min(norm, clip_norm), rel=1e-3)


def test_label_smoothing_spreads_a_part_over_all_classes() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    probabilities = F.one_hot(labels, 4) * 0.9 + 0.1 / 4
    expected = -(probabilities * F.log_softmax(logits, dim=1)).sum()
    torch.testing.assert_close(cross_entropy(0.1)(logits, labels), expected)


def test_the_average_follows_the_weights_and_is_used_only_inside(config: Config) -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3))
    of = stepper(network, replace(config.train, ema_decay=0.8))
    expected: dict[str, Tensor] = {}
    for seed in range(4):
        step(of, [batch(6, seed)])
        state = {name: value.clone() for name, value in network.state_dict().items()}
        for name, value in state.items():
            floats = value.is_floating_point() and name in expected
            expected[name] = 0.8 * expected[name] + 0.2 * value if floats else value
    with of.average.applied(network):
        for name, value in network.state_dict().items():
            torch.testing.assert_close(value, expected[name], msg=name)
        assert not torch.equal(network.state_dict()["1.running_mean"], state["1.running_mean"])
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name])


def test_an_average_that_was_resumed_before_its_first_step_begins_with_it(config: Config) -> None:
    """As where float16 leaves the first steps out: the weights at the beginning are no part of an average."""
    options = replace(config.train, ema_decay=0.8)
    before, after = stepper(linear(), options), stepper(linear(), options)
    state = before.average.state_dict(before.network, before.strategy)
    after.average.load_state_dict(after.network, after.strategy, state)
    step(after, [batch(4)])
    stepped = weights(after.network)
    with after.average.applied(after.network):
        assert torch.equal(weights(after.network), stepped)


class Seen(nn.Module):
    """Tells of what it was given."""

    def forward(self, x: Tensor) -> Tensor:
        self.dtype = x.dtype
        self.channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return x


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_layout_and_precision_reach_the_layers(
    config: Config, precision: str, dtype: torch.dtype, channels_last: bool
) -> None:
    seen = Seen()
    network = nn.Sequential(nn.Conv2d(1, 2, 3), seen, nn.Flatten(), nn.Linear(8, 3))
    if channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    options = replace(config.train, precision=precision, channels_last=channels_last)  # type: ignore[arg-type]
    step(stepper(network, options), [batch(4)])
    assert (seen.dtype, seen.channels_last) == (dtype, channels_last)
    assert next(network.parameters()).dtype == torch.float32


def test_scaled_gradients_make_the_same_step_and_are_clipped_at_their_own_size(config: Config) -> None:
    options = replace(config.train, clip_norm=0.5)
    plain, scaled = linear(), linear()
    step(stepper(plain, options), [batch(4)])
    step(stepper(scaled, options, scaler=GradScaler("cpu", init_scale=1024.0)), [batch(4)])
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=0, atol=1e-6)


def test_an_overflow_is_left_out_and_the_scale_falls_until_it_is_no_overflow(config: Config) -> None:
    network = linear()
    # Beyond float32, as a gradient may be beyond float16.
    scaler = GradScaler("cpu", init_scale=3e38, backoff_factor=2.0**-20)
    of = stepper(nn.Sequential(network, Times(1e4)), replace(config.train, learning_rate=1e-6), scaler=scaler)
    before = weights(network)
    step(of, [batch(4)])
    assert torch.equal(weights(network), before)
    assert of.schedule.last_epoch == 0
    step(of, [batch(4)])
    assert not torch.equal(weights(network), before)
    assert of.schedule.last_epoch == 1


def test_gradients_that_are_no_numbers_at_any_scale_end_it(config: Config) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), Root(), nn.Flatten(), nn.Linear(32, 3))
    of = stepper(network, config.train, scaler=GradScaler("cpu", init_scale=1.0, backoff_factor=0.01))
    step(of, [batch(4)])
    step(of, [batch(4)])
    with pytest.raises(NonFiniteLossError, match=r"the norm of the gradients became nan"):
        step(of, [batch(4)])


class Times(nn.Module):
    """Multiplies."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Root(nn.Module):
    """Zero, but its gradient is 0 / 0."""

    def forward(self, x: Tensor) -> Tensor:
        return 0 * torch.sqrt(x - x.detach())


class Quotient(nn.Module):
    """0 / 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x - x)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Quotient(), r"the loss became nan in here: the first that is not finite is the output of 1\.0 \(Quotient\);"),
        (Root(), r"the norm of the gradients became nan in here: .* is the gradient from 1\.0 \(Root\);"),
    ],
)
def test_the_first_bad_module_is_named_and_nothing_is_changed(config: Config, bad: nn.Module, message: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(bad, nn.Flatten()), nn.ReLU(), nn.Linear(32, 3))
    of = stepper(network, config.train)
    before = weights(network)
    with pytest.raises(NonFiniteLossError, match=message):
        step(of, [batch(4)])
    assert torch.equal(weights(network), before)
    assert not any(module._forward_hooks or module._backward_hooks for module in network.modules())


def test_weights_that_are_no_numbers_are_named(config: Config) -> None:
    network = linear()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter[1] = torch.inf
    with pytest.raises(NonFiniteLossError, match=r"the output of 1 \(Linear\), whose weights are not finite"):
        step(stepper(network, config.train), [batch(4)])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Quotient(), r"in step 7: the output of 0 \(Quotient\) is not finite"),
        (
            Root(),
            r"in step 7: Function 'SqrtBackward0' returned nan .*test_step\.py:\d+ in forward: return 0 \*",
        ),
    ],
)
def test_anomaly_detection_names_the_line(config: Config, bad: nn.Module, message: str) -> None:
    network = nn.Sequential(bad, nn.Flatten(), nn.Linear(16, 3))
    of = stepper(network, config.train, detect_anomaly=True)
    # Its own gradient is what is looked at, so that the images must want one.
    first = batch(4)
    images = (0 * first.images).requires_grad_()
    with pytest.raises(NonFiniteLossError, match=message):
        step(of, [replace(first, images=images)], place="in step 7")


def test_anomaly_detection_takes_no_overflow_for_one(config: Config) -> None:
    scaler = GradScaler("cpu", init_scale=3e38, backoff_factor=2.0**-20)
    of = stepper(nn.Sequential(linear(), Times(1e4)), config.train, detect_anomaly=True, scaler=scaler)
    step(of, [batch(4)])
    assert scaler.get_scale() < 3e38


def test_anomaly_detection_looks_where_it_cannot_be_an_overflow(config: Config) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), Root(), nn.Flatten(), nn.Linear(32, 3))
    scaler = GradScaler("cpu", init_scale=1.0, backoff_factor=1e-4)
    of = stepper(network, config.train, detect_anomaly=True, scaler=scaler)
    step(of, [batch(4)])
    with pytest.raises(NonFiniteLossError, match=r"in step 2: Function 'SqrtBackward0' returned nan"):
        step(of, [batch(4)], place="in step 2")


def test_anomaly_detection_changes_no_result(config: Config) -> None:
    plain, watched = linear(), linear()
    step(stepper(plain, config.train), [batch(4)])
    step(stepper(watched, config.train, detect_anomaly=True), [batch(4)])
    assert torch.equal(weights(watched), weights(plain))
    assert autocast("fp32", CPU) is nullcontext
