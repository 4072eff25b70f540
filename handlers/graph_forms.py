"""The forms of a graph: the same answers, at a speed that depends on processor and batch size.

An archive holds the portable form. Its contract says which others were fastest where it was exported; they are made
here, when the version loads, and are used where they give the portable form's answers.
"""

import functools
import logging
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# Rounding of float32 in another order; a contract's own tolerance holds where the kernels are rougher.
TOLERANCE = 1e-5
# TorchScript profiles its first call and runs optimised code from the second: both must hold.
NUM_CALLS = 2
# Batches that the fused form is compiled for, the largest first; others go through it in such pieces.
PIECES = (32, 16, 8, 4, 2, 1)


class Fused:
    """A graph whose operators oneDNN's graph compiler has joined: a convolution, its addition and ReLU are one kernel.

    It compiles for one shape, and falls back to what it was made of for any other. So there is a graph for each of a
    few sizes, compiled when it is first needed, and other batches go through in pieces. These cost next to nothing,
    since little of a call's time is not its images': a ResNet-20 takes 0.83 ms for one, 0.73 for each of 32.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._compiled: dict[int, Any] = {}

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return what the graph returns for [N, C, H, W]; C, H and W are those of the first call."""
        sizes = pieces(len(batch))
        if len(sizes) == 1:
            return self._answer(batch)
        return torch.cat([self._answer(piece) for piece in torch.split(batch, list(sizes))])

    def _answer(self, piece: torch.Tensor) -> torch.Tensor:
        compiled = self._compiled.get(len(piece))
        if compiled is None:
            compiled = self._compiled[len(piece)] = self._compile(piece)
        answers: torch.Tensor = compiled(piece)
        return answers

    def _compile(self, piece: torch.Tensor) -> Any:
        # What is frozen anew is specialised anew.
        graph: Any = torch.jit.freeze(self._graph)
        # The switch is process-wide. torch reads it only while it specialises a graph, in its first calls.
        was_on = torch.jit.onednn_fusion_enabled()  # type: ignore[no-untyped-call]
        torch.jit.enable_onednn_fusion(True)
        try:
            for _ in range(NUM_CALLS):
                graph(piece)
        finally:
            torch.jit.enable_onednn_fusion(was_on)
        return graph


@functools.cache
def pieces(num_items: int) -> tuple[int, ...]:
    """Return the sizes of the pieces that so many images go in, as few as can be."""
    found: list[int] = []
    for size in PIECES:
        found += [size] * (num_items // size)
        num_items %= size
    return tuple(found)


# What is done to the portable graph, and whether weights and images are laid out with their channels last.
FORMS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "portable": (lambda graph: graph, False),
    "frozen": (torch.jit.freeze, False),
    "frozen-channels-last": (torch.jit.freeze, True),
    "optimized": (torch.jit.optimize_for_inference, False),
    "optimized-channels-last": (torch.jit.optimize_for_inference, True),
    "fused": (Fused, False),
}
# A library of machine code, made by AOTInductor, in place of a graph that can take forms.
PACKAGE = "aoti"
# What torch says that a processor has, the least first.
PROCESSORS = ("DEFAULT", "AVX2", "AVX512")
ON_GPU = ("portable", "frozen")  # the others are made of the CPU's kernels
MOST_FORMS = 2


@dataclass(frozen=True)
class Choice:
    """Which form answers the batches up to a size; None is any size."""

    form: str
    max_batch_size: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A form, ready to run."""

    choice: Choice
    graph: Any

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the probabilities of uint8 [N, C, H, W], which is copied if it lies in the wrong layout."""
        _, channels_last = FORMS[self.choice.form]
        layout = torch.channels_last if channels_last else torch.contiguous_format
        answers: torch.Tensor = self.graph(batch.contiguous(memory_format=layout))
        return answers


class Graph:
    """One graph in at most two forms; the size of a batch decides which one answers it."""

    def __init__(self, forms: Sequence[Loaded]) -> None:
        self.forms = forms

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return probabilities, float32 [N, num_classes], of uint8 [N, C, H, W]."""
        return self._form(len(batch))(batch)

    def stack(self, items: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
        """Copy items [C, H, W] into one batch [N, C, H, W], in the layout that the form for their number wants."""
        _, channels_last = FORMS[self._form(len(items)).choice.form]
        num_items, (channels, height, width) = len(items), items[0].shape
        if channels_last:
            batch = np.empty((num_items, height, width, channels), np.uint8).transpose(0, 3, 1, 2)
        else:
            batch = np.empty((num_items, channels, height, width), np.uint8)
        for index, item in enumerate(items):
            batch[index] = item
        return batch

    def is_warm(self, num_items: int) -> bool:
        """Tell whether batches of that size are as fast from the first one on."""
        return self._form(num_items).choice.form == "fused"  # its check has compiled all pieces

    def describe(self) -> list[dict[str, Any]]:
        """Return which forms are in use, up to which batch size each."""
        return [asdict(form.choice) for form in self.forms]

    def _form(self, num_items: int) -> Loaded:
        for form in self.forms:
            if form.choice.max_batch_size is None or num_items <= form.choice.max_batch_size:
                return form
        return self.forms[-1]


def load_graph(
    path: Path, contract: Mapping[str, Any], override: str, device: torch.device, cases: Sequence[npt.NDArray[np.uint8]]
) -> Graph:
    """Return the graph at path in the forms of the contract, or in the one that `override` names.

    What cannot be made, or deviates from the portable form on the cases [C, H, W], stays portable, and a line is
    printed: a version never fails to load for being slower.
    """
    if contract.get("compile") == PACKAGE:
        if override not in ("", "portable"):
            warn(f"TORCHGATE_GRAPH_FORM is {override!r}; a compiled package has no forms, and stays as it is.")
        return Graph([Loaded(Choice("portable"), load_package(path, contract["compiled_for"]))])
    portable = Loaded(Choice("portable"), load_portable(path, device))
    tolerance = TOLERANCE
    if device.type != "cpu" or contract["precision"] != "fp32":
        tolerance = max(TOLERANCE, contract["self_check"]["tolerance"])
    forms: list[Loaded] = []
    first = 1
    for choice in forms_to_use(contract, override, device):
        form = Loaded(Choice("portable", choice.max_batch_size), portable.graph)
        if choice.form != "portable":
            try:
                made = Loaded(choice, apply_form(load_portable(path, device), choice.form))
                check_parity(made, portable, first, cases, tolerance, device)
                form = made
            except Exception as error:  # noqa: BLE001 - torch raises what it likes; slower is better than not at all
                warn(
                    f"The graph's form {choice.form} is not used, the portable one is: {type(error).__name__}: {error}"
                )
        forms.append(form)
        first = (choice.max_batch_size or 0) + 1
    return Graph(forms)


def load_portable(path: Path, device: torch.device) -> Any:
    """Return the graph as it lies in the archive."""
    with warnings.catch_warnings():
        # torch deprecates its quantization once in each process; from inside a graph it would go to the log.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
    return torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-untyped-call]


def load_package(path: Path, compiled_for: Mapping[str, str]) -> Any:
    """Return AOTInductor's package; raises RuntimeError where its code would end the process: on lesser processors."""
    machine, needed = compiled_for["machine"], compiled_for["processor"]
    here = torch.backends.cpu.get_cpu_capability()
    known = needed in PROCESSORS and here in PROCESSORS
    enough = PROCESSORS.index(here) >= PROCESSORS.index(needed) if known else here == needed
    if machine != platform.machine() or not enough:
        raise RuntimeError(
            f"The package is machine code for {machine} with {needed}, and here is {platform.machine()} with {here}: "
            "export it on such a machine, or serve another variant"
        )
    # Two false warnings: the processor can do more than the package needs; no compiler is here, so the file seems old.
    for name in ("torch.export.pt2_archive._package", "torch._inductor.package.package"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return torch._inductor.aoti_load_package(str(path))  # noqa: SLF001 - documented under this name


def apply_form(graph: Any, form: str) -> Any:
    """Return the graph in another form; the one that is passed must not be used any more."""
    make, channels_last = FORMS[form]
    if channels_last:
        graph = graph.to(memory_format=torch.channels_last)
    return make(graph)


def forms_to_use(contract: Mapping[str, Any], override: str, device: torch.device) -> list[Choice]:
    """Return the forms to use in rising order of batch size, the last without a bound; never raises."""
    if override in FORMS:
        choices = [Choice(override)]
    else:
        if override:
            warn(f"TORCHGATE_GRAPH_FORM is {override!r}; allowed is one of {', '.join(FORMS)}. The contract decides.")
        try:
            choices = read_choices(contract.get("optimize"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            warn(f"contract.json: optimize cannot be used, the graph stays portable: {type(error).__name__}: {error}")
            return [Choice("portable")]
    if device.type != "cpu" and not all(choice.form in ON_GPU for choice in choices):
        return [Choice("frozen")]
    return choices


def read_choices(optimize: Mapping[str, Any] | None) -> list[Choice]:
    """Return what the contract's part of that name says; older archives have none."""
    if optimize is None:
        return [Choice("portable")]
    choices = [Choice(each["form"], each.get("max_batch_size")) for each in optimize["forms"]]
    bounds = [choice.max_batch_size for choice in choices]
    if not 1 <= len(choices) <= MOST_FORMS or bounds[-1] is not None or not all(bounds[:-1]):
        raise ValueError(f"{len(choices)} forms up to {bounds}; allowed: one to {MOST_FORMS}, the last without a bound")
    for choice in choices:
        if choice.form not in FORMS:
            raise ValueError(f"there is no form {choice.form!r}")
    return choices


def check_parity(
    form: Loaded,
    portable: Loaded,
    first: int,
    cases: Sequence[npt.NDArray[np.uint8]],
    tolerance: float,
    device: torch.device,
) -> None:
    """Raise ValueError where the form, on batches from the size `first` on, is off the portable one's answers."""
    last = form.choice.max_batch_size or sys.maxsize
    sizes = [first, first + 1, first + 6]
    if form.choice.form == "fused":
        sizes += PIECES  # and so all of them are compiled
    for num_items in sorted({min(size, last) for size in sizes}):
        items = [cases[index % len(cases)] for index in range(num_items)]
        batch = torch.from_numpy(np.stack(items)).to(device)
        with torch.inference_mode():
            expected = portable(batch)
            for _ in range(NUM_CALLS):
                difference = float((form(batch) - expected).abs().max())
                if not difference <= tolerance:
                    raise ValueError(f"off by {difference:.3g} on a batch of {num_items}, allowed is {tolerance:g}")


def warn(message: str) -> None:
    """Print a line for TorchServe's log."""
    print(message, file=sys.stderr, flush=True)
