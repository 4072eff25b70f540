"""Where numbers stop being numbers: the first module whose output, or whose gradient, is not finite."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from training.errors import NonFiniteLossError

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')

EXPECTED = re.compile("(Error detected in|Anomaly Detection)")  # warnings that come with torch's anomaly detection


@dataclass
class Findings:
    """What the hooks saw in one step of this process, in the order of computation."""

    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)


@contextmanager
def watching(network: nn.Module, *, backward: bool = True) -> Iterator[Findings]:
    """Inside, each forward and backward pass adds the modules that make non-finite numbers of finite ones.

    Gradients of parameters are looked at on leaving. The network must run eagerly.
    """
    findings = Findings()
    reached: list[tuple[str, nn.Module, bool]] = []  # in the order of the backward pass: was the incoming one finite?

    def after_forward(name: str, module: nn.Module, output: object) -> None:
        if not _finite(output):
            what = f"the output of {name} ({type(module).__name__})"
            if not _finite(list(module.parameters(recurse=False))):
                what += ", whose weights are not finite"
            findings.forward.append(what)

    def after_backward(name: str, module: nn.Module, grad_input: object, grad_output: object) -> None:
        reached.append((name, module, _finite(grad_output)))
        if _finite(grad_output) and not _finite(grad_input):
            findings.backward.append(f"the gradient from {name} ({type(module).__name__})")

    handles = []
    for name, module in network.named_modules():
        handles.append(
            module.register_forward_hook(lambda module, _, output, name=name: after_forward(name, module, output))
        )
        if backward and not list(module.children()):
            handles.append(
                module.register_full_backward_hook(
                    lambda module, back, ahead, name=name: after_backward(name, module, back, ahead)
                )
            )
    try:
        with warnings.catch_warnings():
            # The first module's input has no gradient; its hook is told so.
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            yield findings
    finally:
        for handle in handles:
            handle.remove()
        for name, module, incoming_finite in reached:
            gradients = [each.grad for each in module.parameters(recurse=False)]
            if incoming_finite and not _finite(gradients):
                findings.backward.append(f"the gradient of the weights of {name} ({type(module).__name__})")
        if not findings.forward and not findings.backward and reached and not reached[0][2]:
            findings.backward.append("the gradient of the loss")


def first_of(findings: list[Findings]) -> str:
    """Return what came first among the findings of all processes, by rank: those of a pipeline hold its stages in
    that order.
    """
    for each in findings:
        if each.forward:
            return each.forward[0]
    for each in reversed(findings):
        if each.backward:
            return each.backward[0]
    return "no module, when the step was computed again"


@contextmanager
def detecting_anomalies(network: nn.Module, place: str) -> Iterator[None]:
    """Inside, torch looks at what each operator of a backward pass returns.

    Raises NonFiniteLossError with the place and what was no number first: the output of a module of the forward pass,
    or what an operator returned in the backward pass, with the line of the forward pass that it belongs to.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", EXPECTED.pattern, UserWarning)
        try:
            with watching(network, backward=False) as findings, torch.autograd.detect_anomaly(check_nan=True):
                yield
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            if findings.forward:
                raise NonFiniteLossError(f"{place}: {findings.forward[0]} is not finite") from error
            frames = [frame for each in caught for frame in FRAME.findall(str(each.message))]
            at = ""
            if frames:
                path, line, function, code = frames[-1]
                at = f", of {path}:{line} in {function}: {code.strip()}"
            raise NonFiniteLossError(f"{place}: {str(error).rstrip('.')}{at}") from error
    for each in caught:
        if not EXPECTED.match(str(each.message)):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _finite(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, (list, tuple)):
        return all(_finite(each) for each in value)
    return True
