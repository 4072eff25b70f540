"""Servers as child processes: started with a log of their own, always stopped with everything they started."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

STOP_SECONDS = 20.0


def free_ports(num_ports: int) -> list[int]:
    """Return ports that nobody listens on, outside the range that outgoing connections draw theirs from."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < num_ports:
            each = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken
                each.bind(("127.0.0.1", random.SystemRandom().randrange(10_240, 32_768)))
                ports.append(each.getsockname()[1])
        return ports


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[psutil.Process]:
    """Run a command with these variables over the environment's; on leaving, SIGTERM, then SIGKILL for what is left."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**without_settings(os.environ), **env},
            cwd=cwd,
            start_new_session=True,
        )
    watched = psutil.Process(process.pid)
    try:
        yield watched
    finally:
        family = family_of(watched)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        for each in family:
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.wait(STOP_SECONDS)
        psutil.wait_procs(family, STOP_SECONDS)


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of torchgate: what is measured is what the harness asks for."""
    return {name: value for name, value in environment.items() if not name.startswith("TORCHGATE_")}


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the process and all that descend from it, as they are now."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
