"""A real terminal for tests: what a command writes to it, and what a person would type."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.torchserve_process import ROOT

COLUMNS, LINES = 80, 24
SECONDS = 60.0
TORCHGATE = (sys.executable, "-m", "service")


@dataclass
class Terminal:
    """A process whose standard streams are a terminal."""

    process: subprocess.Popen[bytes]
    master: int
    shown: str = ""

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self.master, text.encode())

    def until(self, text: str) -> str:
        """Return what is shown once it has this text."""
        return self._read(text)

    def until_end(self) -> tuple[int, str]:
        """Return the exit status, and all that was shown."""
        self._read(None)
        return self.process.wait(SECONDS), self.shown

    def _read(self, awaited: str | None) -> str:
        deadline = time.monotonic() + SECONDS
        while awaited is None or awaited not in self.shown:
            assert select.select([self.master], [], [], max(deadline - time.monotonic(), 0))[0], (awaited, self.shown)
            try:
                part = os.read(self.master, 65536)
            except OSError:  # Linux says EIO once nobody has the other end any more
                part = b""
            if not part:
                assert awaited is None, (awaited, self.shown)
                break
            self.shown += part.decode(errors="replace").replace("\r\n", "\n")
        return self.shown


@contextmanager
def terminal(
    command: Sequence[str], folder: Path = ROOT, columns: int = COLUMNS, env: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run a command in a terminal; it is killed if it is still there at the end."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (LINES, columns))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],  # so that Ctrl-C reaches it
        cwd=folder,
        env={**kept, "TERM": "xterm", "PYTHONPATH": paths, **(env or {})},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(SECONDS)
        with contextlib.suppress(OSError):
            os.close(master)


def shown_by(*arguments: str, folder: Path = ROOT, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit status of `torchgate ARGUMENTS` in a terminal, and what it shows."""
    with terminal([*TORCHGATE, *arguments], folder, env=env) as it:
        return it.until_end()
