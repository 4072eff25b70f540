"""The command that starts a strategy's processes: torchrun's agent inside this process, running this same command.

Elastic training's processes may be killed, restarted, join late or leave. Each node runs an agent; when a process dies
or a node comes or goes, all agents stop theirs, meet again and start anew, as many as there are then. Those go on from
the run's newest checkpoint, and share out among them what was left of the epoch.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import torch
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from training.artifacts import Run
from training.engine.checkpoint import Checkpoints
from training.engine.interruption import LAUNCHED, SIGNALS, heeded
from training.errors import SettingError, TrainingError, WorkersError
from training.options.parallel import ParallelOptions

STOP_SECONDS = 30  # for a checkpoint, as the agent gives those that it knows
KILL_SECONDS = 10  # until a process that was killed is gone


def launch(arguments: Sequence[str], run: Run, options: ParallelOptions, device: torch.device) -> None:
    """Run `python -m training ARGUMENTS` in the strategy's processes until all have ended well.

    Raises WorkersError with what stopped the first that failed, Interrupted after a signal.
    """
    num_processes = options.num_processes(device)
    if num_processes < 1:
        raise SettingError(f"--strategy {options.strategy} starts a process for each GPU, and torch sees none")
    # Each takes its share of the cores, rather than all of them all of the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    os.environ[LAUNCHED] = str(os.getpid())
    if options.strategy != "elastic":
        # Which processes it ends because one has failed, and with what status, is no news: what failed is told below.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    # Shared between rounds, the processes' store is announced in the first one alone: who joins late waits in vain.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with tempfile.TemporaryDirectory(prefix="torchgate-training-") as logs:
        config = launch_config(run.id, options, num_processes, logs)
        try:
            elastic_launch(config, sys.executable)("-m", "training", *arguments)
        except ChildFailedError as error:
            raise first_failure(error) from error
        except (RendezvousError, DistError) as error:
            raise WorkersError(f"the nodes did not meet at {config.rdzv_endpoint}: {error}") from error
        except SignalException as error:
            end_children(error.sigval)
            paths = Checkpoints(run.checkpoints, 1).paths()
            rest = f"--resume goes on from its newest checkpoint, {paths[-1]}" if paths else "it has left no checkpoint"
            raise SIGNALS[error.sigval](f"training was stopped; {rest}") from error


def launch_config(job: str, options: ParallelOptions, num_processes: int, logs: str) -> LaunchConfig:
    """Return what torchrun would make of these options; port 0 is any that is free. `job` is the same on all nodes."""
    least, most = options.least_and_most_nodes()
    elastic = options.strategy == "elastic"
    restarts = 10 if options.max_restarts is None else options.max_restarts
    return LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=num_processes,
        run_id=job,
        rdzv_backend="c10d",
        rdzv_endpoint=options.rendezvous or "localhost:0",
        rdzv_configs={"last_call_timeout": options.join_seconds or 30},
        max_restarts=restarts if elastic else 0,
        # They are passed on to the processes, which know no others.
        signals_to_handle=",".join(each.name for each in heeded()),
        # Where nodes find each other by a name, that name; on one machine there is nothing to look up.
        local_addr="localhost" if options.rendezvous is None or options.rendezvous.startswith("localhost:") else None,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )


def end_children(number: signal.Signals) -> None:
    """End what the agent had started and did not know yet when the signal came: it ends only what it knows."""
    left = psutil.Process().children()
    with suppress(SignalException):  # another one does not wait
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, left = psutil.wait_procs(left, STOP_SECONDS)
    for each in heeded():
        signal.signal(each, signal.SIG_IGN)  # the end comes anyway
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, KILL_SECONDS)


def check_started(options: ParallelOptions) -> None:
    """Raise SettingError for options of a command that starts processes, where torchrun or mpirun has."""
    for name in ("processes", "rendezvous", "join_seconds", "max_restarts"):
        if LAUNCHED not in os.environ and getattr(options, name) is not None:
            raise SettingError(
                f"--{name.replace('_', '-')} is for the command that starts the processes, and torchrun or mpirun has "
                "started this one; it has options of its own"
            )


def first_failure(error: ChildFailedError) -> WorkersError:
    """Return what stopped the process that failed first as one line, with its exit status."""

    def moment(rank: int) -> int:
        failure = error.failures[rank]
        # The others of one that was killed lose their connections, and may tell of it before its death is noticed.
        killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        return failure.timestamp - (5 if killed else 0)

    rank = min(error.failures, key=moment)
    failure = error.failures[rank]
    # A process that told its error left more than a text.
    message: Any = failure.message
    if isinstance(message, dict):
        return WorkersError(message["message"].partition(": ")[2], exit_code=failure.exitcode)
    how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with status {failure.exitcode}"
    return WorkersError(f"process {rank} {how} and could not say why")


@contextmanager
def launched() -> Iterator[None]:
    """Be a process of the command that started this one, if one did: hand errors to it.

    Those that are no TrainingError go on, too.
    """
    if LAUNCHED not in os.environ:
        yield
        return
    try:
        yield
    except Exception as error:
        told = error
        if not isinstance(error, TrainingError):
            rank, kind = os.environ["RANK"], type(error).__name__
            told = WorkersError(f"process {rank} failed, its traceback is above: {kind}: {error}".splitlines()[0])
        get_error_handler().record_exception(told)
        if not isinstance(error, TrainingError):
            raise
        raise SystemExit(error.exit_code) from error
