"""The tables of single operations: how they are written, compiled, chosen, and where their memory lies."""

import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.training.table import Figure, Row, Table
from benchmarks.training.timing import ON_CPU, ON_GPU, in_turns

NO_GPU = "torch sees no CUDA device; an NVIDIA GPU and its build of torch are needed"
PAIRWISE = (100, 200, 2)
PUBLISHED_CHAIN = "published chain, 5"
CHAIN_SIZES = (1_000, 10_000, 100_000, 1_000_000)
COPY_BYTES = (4 << 20, 64 << 20)
CONVOLUTIONS = {"56 x 56": (32, 64, 56), "14 x 14": (32, 256, 14)}  # batch, channels, side


def pairwise_by_loops(first: Tensor, second: Tensor) -> Tensor:
    """Return the Euclidean distances [N, M] of points [N, D] and [M, D], one pair at a time."""
    distances = torch.empty(len(first), len(second))
    for row in range(len(first)):
        for column in range(len(second)):
            distances[row, column] = (first[row] - second[column]).square().sum().sqrt()
    return distances


def pairwise_by_broadcasting(first: Tensor, second: Tensor) -> Tensor:
    """Return the same from one difference [N, M, D]."""
    return (first[:, None] - second[None]).square().sum(dim=2).sqrt()


def square_chain(x: Tensor) -> Tensor:
    """Return x squared ten times over: ten element-wise operations, the published chain."""
    for _ in range(10):
        x = x * x
    return x


def gelu_chain(x: Tensor) -> Tensor:
    """Return GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415): nine element-wise operations."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def missing_compiler() -> str:
    """Return why torch.compile cannot be measured here; nothing where it can."""
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"no C++ compiler ({compiler}) here"


def pairwise(seconds: float) -> Table:
    """Measure the distances of all pairs."""
    num_first, num_second, num_axes = PAIRWISE
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(num_first, num_axes, generator=generator)
    second = torch.rand(num_second, num_axes, generator=generator)
    figures = in_turns(
        {
            "loops": partial(pairwise_by_loops, first, second),
            "broadcasting": partial(pairwise_by_broadcasting, first, second),
            "torch.cdist": partial(torch.cdist, first, second),
        },
        seconds,
        scale=1e3,
    )
    ratio = figures["loops"].median / figures["broadcasting"].median
    here, published = "this machine", "published"
    rows: dict[str, Row] = {name: {here: figure} for name, figure in figures.items()}
    rows["loops"] = {here: figures["loops"], published: Figure.exactly(438)}
    rows["broadcasting"] = {here: figures["broadcasting"], published: Figure.exactly(0.322)}
    return Table(
        name="pairwise",
        title="Pairwise distance",
        note=f"{num_first} points against {num_second} in {num_axes} dimensions, one thread. {ON_CPU}",
        unit="ms",
        columns=(here, published),
        rows=rows,
        findings=[f"Broadcasting is {ratio:,.0f} times as fast as loops (published: {438 / 0.322:,.0f} times)."],
    )


def chain(seconds: float) -> Table:
    """Measure a chain of element-wise operations, called one by one and compiled."""
    scripted = torch.jit.script(gelu_chain)
    ways: dict[str, Callable[[Tensor], Tensor]] = {"eager": gelu_chain, "scripted": scripted}
    no_compiler = missing_compiler()
    if not no_compiler:
        ways["torch.compile"] = torch.compile(gelu_chain, dynamic=False)
    columns = tuple(f"{size:,}" for size in CHAIN_SIZES)
    rows: dict[str, dict[str, Figure]] = {name: {} for name in ways}
    with torch.inference_mode():
        for size, column in zip(CHAIN_SIZES, columns, strict=True):
            x = torch.randn(size, generator=torch.Generator().manual_seed(0))
            for name, figure in in_turns({name: partial(way, x) for name, way in ways.items()}, seconds, 1e6).items():
                rows[name][column] = figure
        few = torch.rand(5, generator=torch.Generator().manual_seed(0))
        squares = {"eager": partial(square_chain, few), "scripted": partial(torch.jit.script(square_chain), few)}
        for name, figure in in_turns(squares, seconds, 1e6).items():
            rows[name][PUBLISHED_CHAIN] = figure
    ratios = ", ".join(f"{rows['eager'][each].median / rows['scripted'][each].median:.2f}" for each in columns)
    fuses = torch._C._jit_can_fuse_on_cpu()  # noqa: SLF001
    return Table(
        name="chain",
        title="Element-wise chain",
        note=(
            "GELU in its tanh form, nine operations on float32 elements, one thread; and the published chain, "
            f"x * x ten times on rand(5), whose published figures are 18.5 µs eager and 4.41 µs scripted. {ON_CPU}"
        ),
        unit="µs",
        columns=(PUBLISHED_CHAIN, *columns),
        rows={**rows, **({"torch.compile": no_compiler} if no_compiler else {})},
        findings=[
            f"Eager takes {ratios} times as long as scripted, by size. TorchScript "
            + ("fuses" if fuses else "fuses nothing")
            + " on the CPU in this build of torch"
            + ("." if fuses else ": what it saves is Python between the operations. torch.compile makes one loop.")
        ],
    )


def convolution(seconds: float) -> Table:
    """Measure cuDNN's search for the fastest algorithm."""
    ways = {"cudnn.benchmark off": False, "cudnn.benchmark on": True}
    rows: dict[str, dict[str, Figure]] = {name: {} for name in ways}
    for column, (batch, channels, side) in CONVOLUTIONS.items() if torch.cuda.is_available() else ():
        layer = nn.Conv2d(channels, channels, kernel_size=3, padding=1).cuda()
        x = torch.randn(batch, channels, side, side, device="cuda")
        for name, searches in ways.items():
            with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=searches):
                rows[name] |= {column: in_turns({name: partial(layer, x)}, seconds, 1e3, on_gpu=True)[name]}
    return Table(
        name="convolution",
        title="Convolution with and without cudnn.benchmark",
        note=f"3 x 3, float32, batch of 32: 64 channels of 56 x 56, and 256 of 14 x 14. {ON_GPU}",
        unit="ms",
        columns=tuple(CONVOLUTIONS),
        rows={name: row or NO_GPU for name, row in rows.items()},
    )


def copies(seconds: float) -> Table:
    """Measure copies to the GPU from memory that the kernel may swap out, and from memory that it may not."""
    columns = {f"{size >> 20} MiB": size for size in COPY_BYTES}
    rows: dict[str, dict[str, Figure]] = {"pageable": {}, "pinned": {}}
    for column, size in columns.items() if torch.cuda.is_available() else ():
        pageable = torch.zeros(size, dtype=torch.uint8)
        target = torch.zeros(size, dtype=torch.uint8, device="cuda")
        calls: dict[str, Callable[[], Any]] = {
            "pageable": partial(target.copy_, pageable),
            "pinned": partial(target.copy_, pageable.pin_memory(), non_blocking=True),
        }
        for name, figure in in_turns(calls, seconds, 1e3, on_gpu=True).items():
            rows[name][column] = figure
    return Table(
        name="copies",
        title="Copies to the GPU from pageable and from pinned memory",
        note=ON_GPU,
        unit="ms",
        columns=tuple(columns),
        rows={name: row or NO_GPU for name, row in rows.items()},
    )
