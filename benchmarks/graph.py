"""The forms that one exported graph can be brought into when it is loaded, and which of them is fastest here.

Raw passes and all peers load the graph through this file, so that none has a better model than another.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Forward = Callable[[torch.Tensor], torch.Tensor]
FORMS = ("plain", "frozen", "frozen-channels-last", "optimized", "optimized-channels-last")
FORM_FILE = "form.json"
TOLERANCE = 1e-4
# The size that decides: what a busy server runs.
BATCH_SIZE = 32
WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
WARM_UP_RUNS = 3
WARM_UP_SECONDS = 15.0


def load(folder: Path, form: str) -> Forward:
    """Return folder/model.pt as a function of uint8 [N, C, H, W] to probabilities [N, num_classes]."""
    graph = torch.jit.load(str(folder / "model.pt"), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    if form == "plain":
        return graph  # type: ignore[no-any-return]
    channels_last = form.endswith("channels-last")
    if channels_last:
        graph = graph.to(memory_format=torch.channels_last)
    graph = torch.jit.freeze(graph)
    if form.startswith("optimized"):
        graph = torch.jit.optimize_for_inference(graph)
    if not channels_last:
        return graph  # type: ignore[no-any-return]
    return lambda batch: graph(batch.contiguous(memory_format=torch.channels_last))


def warm_up(forward: Forward, size: Mapping[str, int]) -> None:
    """Run every size of batch that is to come: TorchScript specialises during its first runs."""
    deadline = time.monotonic() + WARM_UP_SECONDS
    with torch.inference_mode():
        for num_items in WARM_UP_SIZES:
            for _ in range(WARM_UP_RUNS):
                if time.monotonic() > deadline:
                    return
                forward(torch.zeros(num_items, size["channels"], size["height"], size["width"], dtype=torch.uint8))


def fastest(folder: Path, seconds: float) -> dict[str, Any]:
    """Return each form's images/s on one thread at BATCH_SIZE, and the fastest whose answers are the plain graph's."""
    torch.set_num_threads(1)
    contract = json.loads((folder / "contract.json").read_text())
    size = contract["input"]
    shape = (BATCH_SIZE, size["channels"], size["height"], size["width"])
    batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = load(folder, "plain")(batch)
        forms: dict[str, Forward] = {}
        for form in FORMS:
            try:
                forward = load(folder, form)
                answered = [forward(batch) for _ in range(WARM_UP_RUNS)][-1]
            except RuntimeError as error:  # quantized graphs do not take every form
                print(f"{form}: {str(error).strip().splitlines()[-1][:200]}", file=sys.stderr)
                continue
            # int8 kernels round differently when operators are fused; that is theirs, not a fault of the form.
            if contract["precision"] != "fp32" or float((answered - expected).abs().max()) <= TOLERANCE:
                forms[form] = forward
        speeds: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(3):  # interleaved
            for form, forward in forms.items():
                started, num_runs = time.perf_counter(), 0
                while (elapsed := time.perf_counter() - started) < seconds / 3:
                    forward(batch)
                    num_runs += 1
                speeds[form].append(num_runs * BATCH_SIZE / elapsed)
    medians = {form: round(statistics.median(each), 1) for form, each in speeds.items()}
    return {"form": max(medians, key=lambda form: medians[form]), "images_per_second": medians}


def chosen_form(folder: Path) -> str:
    """Return the form that was measured for this graph when its workload was prepared."""
    return str(json.loads((folder / FORM_FILE).read_text())["form"])


def main() -> None:
    """Measure the graph in the folder that is named, and leave the outcome there."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    outcome = fastest(folder, seconds)
    (folder / FORM_FILE).write_text(json.dumps(outcome, indent=1))
    print(f"{folder.name}: {outcome}")


if __name__ == "__main__":
    main()
