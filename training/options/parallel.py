"""How training is spread over processes: the options, and which of them go together."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from training.errors import SettingError
from training.options.config import WITH_CONTROL_FLOW, TrainConfig

StrategyName = Literal["single", "data-parallel", "ddp", "model-parallel", "hybrid", "fsdp", "rpc", "elastic"]
Backend = Literal["auto", "gloo", "nccl", "mpi"]
NODES = re.compile(r"(\d+)(?::(\d+))?")
RENDEZVOUS = re.compile(r"[^:\s]+:\d+")
IN_ONE_PROCESS: tuple[StrategyName, ...] = ("single", "data-parallel")

# Which strategies an option is for; elsewhere it would do nothing, and is refused.
MEANT_FOR: dict[str, tuple[StrategyName, ...]] = {
    "processes": tuple(name for name in get_args(StrategyName) if name not in IN_ONE_PROCESS),
    "backend": tuple(name for name in get_args(StrategyName) if name not in IN_ONE_PROCESS),
    "stages": ("hybrid",),
    "micro_batches": ("model-parallel", "hybrid", "rpc"),
    "local_batch_norm": ("ddp", "elastic"),
    "cpu_offload": ("fsdp",),
    "nodes": ("elastic",),
    "rendezvous": ("elastic",),
    "join_seconds": ("elastic",),
    "max_restarts": ("elastic",),
}


# Float16 leaves out a step whose gradients are too large; in these, a process sees the gradients of its part alone.
IN_PARTS: tuple[StrategyName, ...] = ("model-parallel", "hybrid", "fsdp", "rpc")


@dataclass(frozen=True)
class ParallelOptions:
    """How training is spread over devices and processes."""

    strategy: StrategyName = "single"
    """single: one process. data-parallel: one process, several GPUs. ddp: a replica per process. model-parallel: a
    part of the network per process. hybrid: replicas of such parts. fsdp: a shard of each weight per process. rpc:
    parts as remote objects. elastic: ddp whose processes may come, go and be restarted."""
    processes: int | None = None
    """How many to start, on each node; by default one for each GPU, 2 on the CPU (hybrid: 2 for each stage). Under
    torchrun, which starts them, leave it out."""
    backend: Backend = "auto"
    """Backend of torch.distributed; auto is nccl on GPUs, gloo on the CPU. mpi needs a torch that was built with it,
    and a start by mpirun."""
    stages: int | None = None
    """With hybrid: parts that the network is split into; by default 2."""
    micro_batches: int | None = None
    """With model-parallel, hybrid and rpc: equal parts that a batch is split into for the pipeline, by default 4. If a
    batch cannot be split evenly, the next smaller number that can is used. Batch norm sees one part at a time."""
    local_batch_norm: bool = False
    """With ddp and elastic: each process normalises by its own images alone, which saves communication; by default
    statistics are those of the whole batch, so that results do not depend on the number of processes."""
    cpu_offload: bool = False
    """With fsdp on GPUs: keep weights, gradients and the optimizer's state in the memory of the CPU."""
    nodes: str | None = None
    """With elastic: least and largest number of nodes, MIN:MAX; a node is one call of this command. By default 1:1."""
    rendezvous: str | None = None
    """With elastic: HOST:PORT at which nodes meet. The node on HOST keeps the list of nodes."""
    join_seconds: int | None = None
    """With elastic: how long a start waits for more nodes once there are MIN; by default 30."""
    max_restarts: int | None = None
    """With elastic: how often a node starts its processes again after one failed; by default 10."""

    def __post_init__(self) -> None:
        for name, names in MEANT_FOR.items():
            option, value = "--" + name.replace("_", "-"), getattr(self, name)
            if value not in (None, False, "auto") and self.strategy not in names:
                raise SettingError(f"{option} goes with --strategy {', '.join(names)}; this one is {self.strategy}")
        for name, least in (("processes", 1), ("stages", 2), ("micro_batches", 1), ("join_seconds", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingError(f"--{name.replace('_', '-')} is {value}; allowed is {least} or more")
        if self.backend == "mpi" and self.strategy == "elastic":
            raise SettingError(
                "--backend is mpi, and mpirun restarts nothing; with --strategy elastic allowed is gloo, nccl"
            )
        if self.max_restarts is not None and self.max_restarts < 0:
            raise SettingError(f"--max-restarts is {self.max_restarts}; allowed is 0 or more")
        if self.rendezvous is not None and not RENDEZVOUS.fullmatch(self.rendezvous):
            raise SettingError(f"--rendezvous is {self.rendezvous!r}; allowed is HOST:PORT")
        if self.most_nodes() > 1 and self.rendezvous is None:
            raise SettingError(f"--nodes is {self.nodes}: several nodes need a --rendezvous HOST:PORT to meet")

    def least_and_most_nodes(self) -> tuple[int, int]:
        """Return the bounds of the number of nodes."""
        match = NODES.fullmatch(self.nodes or "1:1")
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= least <= most:
            raise SettingError(f"--nodes is {self.nodes!r}; allowed is MIN:MAX, MIN at least 1 and at most MAX")
        return least, most

    def most_nodes(self) -> int:
        """Return the upper bound alone."""
        return self.least_and_most_nodes()[1]

    def num_stages(self) -> int:
        """Return the stages of a hybrid's network."""
        return self.stages or 2

    def num_micro_batches(self) -> int:
        """Return the parts of a batch in a pipeline."""
        return self.micro_batches or 4

    def num_processes(self, device: torch.device) -> int:
        """Return the processes to start on this node for that kind of device."""
        per_node = torch.cuda.device_count() if device.type == "cuda" else 2
        if self.strategy == "hybrid" and device.type != "cuda":
            per_node = 2 * self.num_stages()
        return self.processes or per_node

    def num_shards(self, device: torch.device) -> int:
        """Return the parts that each batch is split into by the processes of one node."""
        match self.strategy:
            case "ddp" | "fsdp" | "elastic":
                return self.num_processes(device)
            case "hybrid":
                return self.num_processes(device) // self.num_stages()
        return 1

    def runs_in_processes(self) -> bool:
        """Tell whether the strategy's processes talk to each other through torch.distributed."""
        return self.strategy not in IN_ONE_PROCESS


def check_training(train: TrainConfig, device: torch.device, options: ParallelOptions) -> None:
    """Raise SettingError for a precision, a network or a device that does not go with the strategy."""
    strategy = options.strategy
    if train.precision == "fp16" and strategy in IN_PARTS:
        raise SettingError(
            f"--precision is fp16, and --strategy is {strategy}, whose processes would have to agree on each "
            "step that fp16 leaves out; allowed is fp32 or bf16"
        )
    if train.architecture in WITH_CONTROL_FLOW and options.runs_in_processes():
        raise SettingError(
            f"--model is {train.architecture}, in which the place in the batch decides how far an image goes, and "
            f"--strategy {strategy} splits batches or the network; allowed is {' or '.join(IN_ONE_PROCESS)}"
        )
    if device.index is not None and strategy != "single":
        raise SettingError(
            f"--device is {device}, and --strategy {strategy} takes all GPUs that torch sees; allowed is cuda, with "
            "CUDA_VISIBLE_DEVICES for some of them"
        )
