"""The ways from a module to a graph: trace, script, the two mixed, and torch.export's for what is not TorchScript."""

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.jit._trace import TracerWarning
from torch.jit.frontend import FrontendError

from training.errors import SettingError
from training.export.compile_errors import compile_error
from training.models.early_exit import straight_parts
from training.models.serving_graph import ServingGraph
from training.options.config import MOST_IMAGES, WITH_CONTROL_FLOW, Architecture, Compile, ExportConfig

# They warn of packages that nobody asked for, of what is raised anyway, and of processors that can do more than asked.
CHATTY = (
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export.pt2_archive._package",
    "torch._inductor.package.package",
)


def check_compile(architecture: Architecture, config: ExportConfig) -> None:
    """Raise SettingError where the way cannot hold what the architecture does, before hours are spent on training."""
    if architecture not in WITH_CONTROL_FLOW:
        return
    if config.compile == "trace":
        raise SettingError(
            f"--compile is trace, and how far {architecture} goes depends on the image, which a trace would freeze; "
            "allowed are script and mixed"
        )
    if config.aoti or config.onnx:
        raise SettingError(
            f"--aoti and --onnx hold one way through the code, and how far {architecture} goes depends on the image; "
            "allowed are models without such a loop"
        )


def compile_graph(model: nn.Module, method: Compile, images: Tensor) -> Any:
    """Return the model as TorchScript; `images`, uint8 [N, C, H, W] with N > 1, are what trace records.

    Raises CompileError, with the line of the model's source, for code that the method cannot compile or would freeze.
    """
    match method:
        case "trace":
            return _trace(model, images)
        case "script":
            return _script(model)
        case "mixed":
            return _script(_with_traced_parts(model, images))


def export_program(model: nn.Module, images: Tensor) -> ExportedProgram:
    """Return the model as torch.export has it, for 1 to MOST_IMAGES images of the shape of `images`.

    Raises CompileError, with the line of the model's source, where what it does depends on the images.
    """
    sizes = ({0: Dim("batch", min=1, max=MOST_IMAGES)},)
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(model, (images,), dynamic_shapes=sizes)
    # UserError and its like of torch.export are RuntimeErrors, too.
    except (RuntimeError, ValueError) as error:
        raise compile_error("torch.export", str(error)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself, inside, what torch.export says of its insides; before it raises, it prints whole graphs."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _trace(model: nn.Module, example: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        # Recorded, not raised: raised, it would come out of torch's C++ as a SystemError without its reason.
        warnings.simplefilter("always", TracerWarning)
        try:
            # The graph is checked on other batch sizes after it was saved; torch's own check repeats this one.
            graph = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise compile_error("trace", str(error)) from error
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            raise compile_error("trace", str(warning.message), (warning.filename, warning.lineno))
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return graph


def _script(model: nn.Module) -> Any:
    """Return the model as torch.jit.script has it.

    It knows builtins by their addresses and keeps those of some that are gone: now and then one of the model's own
    lists lies at such an address and is taken for a builtin. Such a list is put elsewhere first.
    """
    builtins = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]  # noqa: SLF001
    moved = []  # kept until the end, so that no copy comes to lie where its original was
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in list(vars(module).items()):
            while id(value) in builtins and isinstance(value, list | tuple):
                moved.append(value)
                value = type(value)([*value])  # noqa: PLW2901
                setattr(module, name, value)
    try:
        return torch.jit.script(model)
    except (FrontendError, RuntimeError, TypeError) as error:
        raise compile_error("script", str(error)) from error


def _with_traced_parts(model: nn.Module, images: Tensor) -> nn.Module:
    """Return a copy whose parts without control flow are traced, on what the images become before them."""
    model = copy.deepcopy(model)
    assert isinstance(model, ServingGraph), "every variant is one"
    with torch.no_grad():
        parts = straight_parts(model.network, model.normalize(images))
    for name, x in parts.items():
        traced = _trace(model.network.get_submodule(name), x)
        if name:
            setattr(model.network, name, traced)
        else:
            model.network = traced
    return model
