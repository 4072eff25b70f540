"""The verb that shows where a version's time goes: operators by share, and a trace, for each batch size."""

import gzip
import os
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd import profiler

from training.artifacts import Run, read_json, write_bytes, write_json
from training.errors import RunError, SettingError
from training.evaluation.plots import plot_profile
from training.evaluation.threads import one_thread
from training.options.config import ProfileConfig, config_from
from training.profiling.served import Served, served_archive, served_run

# TorchScript specialises its graph during the first calls with a shape.
NUM_WARM_UP_CALLS = 3
BATCH = "batch"  # what a batch is called in a trace
MOST_ROWS = 15
# Where the forms that oneDNN has optimised spend their time.
NAMELESS = "forward"
NOTE = (
    "`forward` is TorchScript itself, with what it runs past torch's dispatcher: in optimised forms, the convolutions. "
    "TORCHGATE_GRAPH_FORM=frozen profiles a form that shows each of them."
)
MOST_NAMELESS = 0.1
PHASES = {
    "decode": "decode_ms",
    "compute": "compute_ms",
    "serialise": "serialise_ms",
    "the graph alone": "graph_ms",
    "the graph, profiled": "profiled_graph_ms",
}
MOST_BARS = 9


@dataclass(frozen=True)
class OperatorFigures:
    """All calls of one operator during a batch, on average; times in milliseconds."""

    operator: str
    num_calls: float
    self_cpu_ms: float
    share: float
    cpu_ms: float
    self_device_ms: float
    device_share: float


@dataclass(frozen=True)
class SizeFigures:
    """One batch size. Stages and graph are medians without a profiler, operators are means under it."""

    batch_size: int
    graph_ms: float
    profiled_graph_ms: float
    decode_ms: float
    compute_ms: float
    serialise_ms: float
    trace: str
    operators: list[OperatorFigures]


@dataclass(frozen=True)
class Profile:
    """What was found, and of what."""

    source: str
    model: str
    version: str
    precision: str
    device: str
    num_threads: int
    processor: str
    torch_version: str
    forms: list[dict[str, Any]]
    num_batches: int
    sizes: list[SizeFigures]


def profile(folder: Path, config: ProfileConfig, handler: Path) -> None:
    """Leave profile.json, profile.md, profile.png and a Chrome trace for each batch size in the folder.

    Raises RunError or ProfileError if the run or archive cannot be loaded as a server would.
    """
    with one_thread(), _served(config, handler) as served:
        sizes = []
        for number, size in enumerate(config.batch_sizes, 1):
            print(f"{number}/{len(config.batch_sizes)} {config.num_batches} batches of {size}", flush=True)
            sizes.append(profile_size(folder, served, size, config.num_batches))
        contract, device = served.contract, served.handler.device
        found = Profile(
            source=str(config.run or config.archive),
            model=contract["model"],
            version=contract["version"],
            precision=contract["precision"],
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            num_threads=torch.get_num_threads(),
            processor=torch.backends.cpu.get_cpu_capability(),
            torch_version=torch.__version__,
            forms=served.handler.model.describe(),
            num_batches=config.num_batches,
            sizes=sizes,
        )
    write_json(folder / "profile.json", found)
    table = markdown(found)
    write_bytes(folder / "profile.md", f"{table}\n".encode())
    _draw(folder / "profile.png", found)
    print(f"{table}\nprofile: {folder}")


def profile_size(folder: Path, served: Served, size: int, num_batches: int) -> SizeFigures:
    """Return one batch size's figures, and leave its trace in the folder."""
    batch, images = served.batch(size), served.images(size)
    for _ in range(NUM_WARM_UP_CALLS):
        served.run(batch)
        served.answer(images)
    graph_ms = median(_milliseconds(served, batch) for _ in range(num_batches))
    decode_ms, compute_ms, serialise_ms = _phases(served, images, num_batches)
    # Lines of torch's own at each start and stop are no news.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with _watching(served):  # its first start takes time of its own
        served.run(batch)
    with _watching(served) as seen:
        for _ in range(num_batches):
            with profiler.record_function(BATCH):
                served.run(batch)
    averages = [each for each in seen.key_averages() if each.device_type.name == "CPU"]
    profiled = sum(each.cpu_time_total for each in averages if each.key == BATCH)
    trace = f"trace-{size}.json.gz"
    _write_trace(seen, folder / trace)
    return SizeFigures(
        batch_size=size,
        graph_ms=graph_ms,
        profiled_graph_ms=profiled / 1e3 / num_batches,
        decode_ms=decode_ms,
        compute_ms=compute_ms,
        serialise_ms=serialise_ms,
        trace=trace,
        operators=figures([each for each in averages if each.key != BATCH], num_batches),
    )


def figures(averages: list[Any], num_batches: int) -> list[OperatorFigures]:
    """Return torch's sums over all batches as means, the largest share first.

    A GPU's kernels count for the operators that started them.
    """
    cpu = sum(each.self_cpu_time_total for each in averages)
    device = sum(each.self_device_time_total for each in averages)
    rows = [
        OperatorFigures(
            operator=each.key,
            num_calls=each.count / num_batches,
            self_cpu_ms=each.self_cpu_time_total / 1e3 / num_batches,
            share=each.self_cpu_time_total / cpu if cpu else 0.0,
            cpu_ms=each.cpu_time_total / 1e3 / num_batches,
            self_device_ms=each.self_device_time_total / 1e3 / num_batches,
            device_share=each.self_device_time_total / device if device else 0.0,
        )
        for each in averages
    ]
    return sorted(rows, key=lambda row: (-row.device_share, -row.share, row.operator))


def markdown(found: Profile) -> str:
    """Return the operators' shares and the phases as tables for people."""
    sizes = found.sizes
    head = " | ".join(f"batch of {each.batch_size}" for each in sizes)
    rule = "|---|" + "---|" * len(sizes)
    lines = [f"{found.model} {found.version} on {found.device}, ms per batch", "", f"| stage | {head} |", rule]
    lines += [
        f"| {title} | {' | '.join(format(getattr(size, name), '.3f') for size in sizes)} |"
        for title, name in PHASES.items()
    ]
    for title, share, own in (("self CPU", "share", "self_cpu_ms"), ("GPU", "device_share", "self_device_ms")):
        columns = [{each.operator: each for each in size.operators} for size in sizes]
        names = sorted(
            {name for column in columns for name, row in column.items() if getattr(row, own) > 0},
            key=lambda name: -max(getattr(column[name], share) for column in columns if name in column),
        )
        if not names:
            continue
        lines += ["", f"| operator, {title} | {head} |", rule]
        for name in names[:MOST_ROWS]:
            cells = (
                f"{getattr(column[name], share):.1%} ({getattr(column[name], own):.3f} ms)" if name in column else ""
                for column in columns
            )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    is_optimized = any(each["form"].startswith("optimized") for each in found.forms)
    rows = (each for size in sizes for each in size.operators)
    if is_optimized and any(each.operator == NAMELESS and each.share > MOST_NAMELESS for each in rows):
        lines += ["", NOTE]
    return "\n".join(lines)


def _served(config: ProfileConfig, handler: Path) -> AbstractContextManager[Served]:
    if (config.run is None) == (config.archive is None):
        raise SettingError("profile needs --run or --archive, and not both")
    if config.run is None:
        assert config.archive is not None
        if config.variant is not None:
            raise SettingError("--variant belongs to --run; an archive holds one variant")
        return served_archive(config.archive)
    if not config.run.is_dir():
        raise RunError(f"--run: {config.run} is not a folder; `python -m training prepare` makes one")
    run = Run(config.run)
    name = config_from(read_json(run.config, written_by="prepare")).name
    return served_run(run, config.variant or "fp32", name, handler)


def _watching(served: Served) -> Any:
    device = served.handler.device.type
    return profiler.profile(use_kineto=True, use_device=None if device == "cpu" else device)


def _milliseconds(served: Served, batch: Any) -> float:
    start = time.perf_counter()
    served.run(batch)
    return (time.perf_counter() - start) * 1e3


def _phases(served: Served, images: list[bytes], num_batches: int) -> tuple[float, float, float]:
    """Return the medians of what whole requests take: to decode, to compute, and to unpack and serialise."""
    decode, compute, rest = [], [], []
    for _ in range(num_batches):
        start = time.perf_counter()
        timings = served.answer(images)
        total = (time.perf_counter() - start) * 1e3
        decode.append(timings["decode"])
        compute.append(timings["compute"])
        rest.append(total - timings["decode"] - timings["compute"])
    return median(decode), median(compute), median(rest)


def _write_trace(seen: Any, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(plain))
        write_bytes(path, gzip.compress(plain.read_bytes()))


def _draw(path: Path, found: Profile) -> None:
    on_gpu = any(each.self_device_ms for size in found.sizes for each in size.operators)

    def share(row: OperatorFigures) -> float:
        return row.device_share if on_gpu else row.share

    every = [row for size in found.sizes for row in size.operators]
    largest = sorted(
        {row.operator for row in every}, key=lambda name: -max(share(r) for r in every if r.operator == name)
    )
    names = largest[:MOST_BARS]
    shares = {}
    for size in found.sizes:
        parts = {name: sum(share(row) for row in size.operators if row.operator == name) for name in names}
        shares[f"{size.batch_size}"] = {**parts, "others": max(1 - sum(parts.values()), 0.0)}
    phases = {
        f"{size.batch_size}": {"decode": size.decode_ms, "compute": size.compute_ms, "serialise": size.serialise_ms}
        for size in found.sizes
    }
    plot_profile(path, shares, phases)
