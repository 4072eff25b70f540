"""The processes of a training, as each of them sees the others."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.errors import SettingError
from training.options.parallel import Backend
from training.parallel.process_exit import leave_early

# A process that waits this long for another one gives up; first steps on a busy machine take a while.
TIMEOUT = timedelta(minutes=10)
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """All processes, and which of them this one is; one that is alone need not have joined a process group."""

    rank: int
    size: int
    device: torch.device
    """Of this process."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes the files and shows the progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of the tensor over all processes, to each of them."""
        if self.size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable values of all processes by rank, to each of them."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: T) -> T:
        """Return the main process's value, picklable, to all; what others pass is not looked at."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return the picklable values of a group by rank, to its first process alone; None is all processes."""
    values = [None] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(value, values, group=group, group_dst=0)
    return values or []


@contextmanager
def joined(device: torch.device, backend: Backend) -> Iterator[World]:
    """Be one of the processes inside: a process group, as torchrun or mpirun says in the environment, and a device.

    Raises SettingError for a backend that is not to be had.
    """
    name = choose_backend(device, backend)
    if device.type == "cuda":
        device = local_device(os.environ)
        torch.cuda.set_device(device)
    if name != "mpi":  # which says goodbye in a function that C calls at the end
        leave_early()
    dist.init_process_group(name, timeout=TIMEOUT)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


def local_device(environment: Mapping[str, str]) -> torch.device:
    """Return this process's GPU, by its number on this node; raises SettingError if there is none of that number."""
    if "LOCAL_RANK" not in environment:
        raise SettingError(
            "LOCAL_RANK has to be the number of the process on its node, which says its GPU: torchrun sets it; Open "
            "MPI's mpirun calls it OMPI_COMM_WORLD_LOCAL_RANK"
        )
    index, num_gpus = int(environment["LOCAL_RANK"]), torch.cuda.device_count()
    if index >= num_gpus:
        raise SettingError(f"process {index} of this node needs a GPU of its own, and torch sees {num_gpus}")
    return torch.device("cuda", index)


def choose_backend(device: torch.device, backend: Backend) -> str:
    """Return what torch.distributed is to use; raises SettingError, saying what would be needed."""
    has_nccl = device.type == "cuda" and dist.is_nccl_available()
    if backend == "nccl" and not has_nccl:
        raise SettingError("--backend is nccl, which needs GPUs (--device cuda) and a torch that was built for them")
    if backend == "mpi" and not dist.is_mpi_available():
        raise SettingError(
            "--backend is mpi, which needs a torch that was compiled on a machine with an MPI; "
            "this one was not: gloo and nccl come with the wheels"
        )
    if backend == "nccl" or (backend == "auto" and has_nccl):
        # What is offloaded to the CPU, or gathered there, does not travel by NCCL.
        return "cpu:gloo,cuda:nccl"
    return "gloo" if backend == "auto" else backend


def started(environment: Mapping[str, str], backend: Backend) -> bool:
    """Tell whether torchrun, or mpirun, has started this process as one of several."""
    return "RANK" in environment or backend == "mpi"
