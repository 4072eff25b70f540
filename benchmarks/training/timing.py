"""How long calls take, by torch.utils.benchmark, in turns, so that what else the machine does hits all alike."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.utils.benchmark import Measurement, Timer

from benchmarks.training.table import Figure

ON_CPU = "Medians with quartiles; time of the thread itself."
ON_GPU = "Medians with quartiles; time until the GPU has done it, call by call."
NUM_TURNS = 5
NUM_WARM_UP_CALLS = 4  # TorchScript specialises its graph in the first ones


def in_turns(
    calls: Mapping[str, Callable[[], object]], seconds: float, scale: float, *, on_gpu: bool = False
) -> dict[str, Figure]:
    """Return each call's time on one thread, in seconds x `scale`; each is called for about `seconds`.

    On the CPU it is the thread's own time: that of others on the same core is not counted. On a GPU it is the time
    until the GPU has done it, each call by itself.
    """
    clock, wait = (time.perf_counter, "; wait()") if on_gpu else (time.thread_time, "")
    timers = {
        name: Timer(f"call(){wait}", globals={"call": call, "wait": torch.cuda.synchronize}, timer=clock, num_threads=1)
        for name, call in calls.items()
    }
    found: dict[str, list[Measurement]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(NUM_WARM_UP_CALLS):
            call()
    for _ in range(NUM_TURNS):
        for name, timer in timers.items():
            found[name].append(timer.blocked_autorange(min_run_time=seconds / NUM_TURNS))
    figures = {}
    for name, measured in found.items():
        times = [taken * scale for each in measured for taken in each.times]
        low, median, high = (float(value) for value in np.percentile(times, [25, 50, 75]))
        figures[name] = Figure(median, low, high)
    return figures
