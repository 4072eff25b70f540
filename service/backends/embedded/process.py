"""A worker's process, in a group of its own: starting, output, memory, exit."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.backends.embedded.allocator import PRELOAD, memory_environment
from service.backends.embedded.worker_log import WorkerLog

logger = logging.getLogger(__name__)

LAUNCHER = Path(__file__).with_name("launch.py")
READ_BYTES = 64 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# The part of the gateway's environment that workers inherit; no secrets.
KEPT = {
    *("GLIBC_TUNABLES", "HOME", "LANG", "LD_LIBRARY_PATH", PRELOAD, "LOGNAME", "PATH", "PYTHONPATH", "TZ", "USER"),
    "TORCHGATE_GRAPH_FORM",  # read by the handler
}
KEPT_PREFIXES = (
    *("ATEN_", "CUDA_", "DNNL_", "GOMP_", "KMP_", "LC_", "MALLOC_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_"),
    *("OPENBLAS_", "PYTORCH_", "TCMALLOC_", "TORCH_", "XDG_"),
)
NUM_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Launcher:
    """Starts every worker in the same way: Python, threads, environment."""

    python: str
    num_threads: int
    environment: Mapping[str, str]  # the gateway's; workers inherit a part of it

    def environment_in(self, folder: Path) -> dict[str, str]:
        """Return a worker's environment; `folder` is for its temporary files."""
        kept = {
            name: value for name, value in self.environment.items() if name in KEPT or name.startswith(KEPT_PREFIXES)
        }
        return {
            "OMP_WAIT_POLICY": "passive",  # an idle thread that spins takes the core of a worker that has work
            **memory_environment(),
            **kept,
            **dict.fromkeys(NUM_THREADS, str(self.num_threads)),
            "TMPDIR": str(folder),
            "PYTHONUNBUFFERED": "1",
            "TS_DECODE_INPUT_REQUEST": "false",
        }


class Process:
    """One process; `on_exit` is called once, after its last output and when nothing of its group is left."""

    def __init__(self, launcher: Launcher, folder: Path, on_exit: Callable[[], None]) -> None:
        self._launcher = launcher
        self._folder = folder
        self._on_exit = on_exit
        self.output = WorkerLog()
        self.exited = asyncio.Event()

    def start(self) -> socket.socket:
        """Start it and return the gateway's end of its socket; OSError if the system refuses."""
        with contextlib.ExitStack() as on_failure:
            ours, theirs = socket.socketpair()
            on_failure.callback(ours.close)
            with theirs:
                self._popen = subprocess.Popen(
                    [self._launcher.python, "-P", str(LAUNCHER), str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    cwd=self._folder,
                    env=self._launcher.environment_in(self._folder),
                    start_new_session=True,
                )
            on_failure.callback(self._popen.wait)
            on_failure.callback(self._popen.kill)
            self._pidfd = os.pidfd_open(self._popen.pid)
            on_failure.pop_all()
        assert self._popen.stdout is not None
        self._stdout = self._popen.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self.pid = self._popen.pid
        self.output.name = f"worker {self.pid}"
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stdout.fileno(), self._read)
        loop.add_reader(self._pidfd, self._ended)
        return ours

    @property
    def status(self) -> str:
        """Say how it ended."""
        code = self._popen.returncode
        if code is None:
            return "it still runs"
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def memory_bytes(self) -> int:
        """Return the resident memory; 0 of a process that is gone."""
        with contextlib.suppress(OSError, IndexError):
            if not self.exited.is_set():
                return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES
        return 0

    def kill(self) -> None:
        """Kill it and whatever it has started in its group."""
        if not self.exited.is_set():
            # Until it is waited for, in _ended, nobody else can have its number.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> bool:
        """Read some output; tell whether there may be more."""
        try:
            data = os.read(self._stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._stdout.fileno())
            return False
        self.output.feed(data)
        return True

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.kill()  # what it started goes with it
        self._popen.wait()
        for _ in range(16):  # of a full pipe: what it holds, no more
            if not self._read():
                break
        loop.remove_reader(self._stdout.fileno())
        self._stdout.close()
        self.output.end()
        self.exited.set()
        self._on_exit()
