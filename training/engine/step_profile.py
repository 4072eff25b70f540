"""The profiler over a few training steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from training.artifacts import Run, write_bytes
from training.errors import SettingError

NUM_STEPS_BEFORE = 3  # not recorded: the first steps allocate, and the profiler itself needs one to warm up
NUM_ROWS = 40


def nothing_after_step() -> None:
    """Profile nothing."""


@contextmanager
def profiling(run: Run, num_steps: int, total_steps: int, device: torch.device) -> Iterator[Callable[[], None]]:
    """Record so many steps; what is given is to be called after each. Leaves the trace and the table in the run.

    Raises SettingError where there are not so many steps.
    """
    if num_steps == 0:
        yield nothing_after_step
        return
    most = total_steps - NUM_STEPS_BEFORE
    if num_steps > most:
        raise SettingError(
            f"--profile-steps is {num_steps}; {total_steps} steps are left and {NUM_STEPS_BEFORE} come before: "
            f"allowed is up to {max(most, 0)}"
        )
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]

    num_taken = 0

    def after_step() -> None:
        nonlocal num_taken
        num_taken += 1
        profiler.step()

    def leave(profiler: profile) -> None:
        if num_taken == NUM_STEPS_BEFORE:
            return  # it ended where the first one would have begun
        key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=key, row_limit=NUM_ROWS)
        write_bytes(run.training_profile, table.encode())
        profiler.export_chrome_trace(str(run.training_trace))
        said = f"profiled {num_taken - NUM_STEPS_BEFORE} of {num_steps} steps"
        print(f"{said}: {run.training_profile} and {run.training_trace}", flush=True)

    when = schedule(wait=NUM_STEPS_BEFORE - 1, warmup=1, active=num_steps, repeat=1)
    try:
        with profile(activities=activities, schedule=when, on_trace_ready=leave) as profiler:
            yield after_step
    finally:
        if num_taken <= NUM_STEPS_BEFORE:
            print(f"profiled 0 of {num_steps} steps: training ended before the first of them", flush=True)
