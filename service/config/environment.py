"""What the settings presuppose: variables' names, files, folders, programs and packages that must be there."""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PREFIX = "TORCHGATE_"
MOST_KEY_BYTES = 16 * 1024  # of a public key in PEM
MOST_SECRET_BYTES = 1024 * 1024
HIDDEN = "(not shown, it may hold a password)"


def env_name(field: str) -> str:
    """Return the environment variable that sets `field`."""
    return PREFIX + field.upper()


def read_file(path: Path, most_bytes: int) -> bytes:
    """Return what a regular file holds; OSError for a larger one, and for a pipe or a device, which might never end."""
    # Without waiting for whoever would write into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)  # to ask for more would allocate it
    finally:
        os.close(descriptor)


def with_secrets(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the settings with the secrets that are in files; raises ValueError for one that is given twice."""
    values = dict(given)
    for name in names:
        path = values.get(f"{name}_file")
        if path is None:
            continue
        shown = f"{env_name(name)}_FILE={path}"
        if values.get(name) is not None:
            raise ValueError(f"{shown}: {env_name(name)} is set as well; unset one of the two")
        try:
            values[name] = read_secret(Path(path))
        except ValueError as error:
            raise ValueError(f"{shown}: {error}") from error
    return values


def read_secret(path: Path) -> str:
    """Return the one line of text that a file holds; raises ValueError, which says what is wrong and shows nothing."""
    try:
        secret = read_file(path, MOST_SECRET_BYTES).decode().strip()
    except OSError as error:
        raise ValueError(f"{error.strerror}; write the secret into a file that this user can read") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no UTF-8 text; write the secret into it as text") from error
    if not secret:
        raise ValueError("the file is empty; write the secret into it")
    if not secret.isprintable():
        raise ValueError("it holds more than one line, or a character that nobody can type; leave only the secret")
    return secret


def require_trusted_keys(folder: Path, store: Path) -> None:
    """Raise ValueError unless the folder holds a public key that can be read, and is no part of the model store."""
    given = f"{env_name('trusted_keys_dir')}={folder}"
    if folder.resolve().is_relative_to(store.resolve()):
        raise ValueError(
            f"{given}: it is in the model store, so whoever can replace the store could add a key; name a folder "
            f"outside of {store}"
        )
    try:
        keys = [path for path in folder.iterdir() if path.suffix == ".pub"]
        for path in keys:
            read_file(path, MOST_KEY_BYTES)
    except OSError as error:
        place = "" if error.filename == str(folder) else f"{error.filename}: "
        raise ValueError(f"{given}: {place}{error.strerror}; leave only readable *.pub files in it") from error
    if not keys:
        raise ValueError(f"{given}: there is no *.pub in it; `python -m training keys new` makes one")


def require_folder(name: str, folder: Path, *, is_private: bool = False) -> None:
    """Raise ValueError unless the folder is there, or can be made, and can be written; if private, by nobody else."""
    given = f"{env_name(name)}={folder}"
    try:
        folder.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ValueError(f"{given}: {error.strerror}; it must be a folder, or one that can be made") from error
    if is_private and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise ValueError(f"{given}: others can write into it; give it to the gateway's user and run chmod go-w")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{given}: nothing can be written into it")


def require_worker_python(name: str | None) -> None:
    """Raise ValueError unless the workers' Python is there; only our own is asked for torchserve, without a start."""
    if name is not None:
        if shutil.which(name) is None:
            raise ValueError(f"{env_name('worker_python')}={name} cannot be run")
    elif missing := [name for name in ("ts", "torch", "yaml") if find_spec(name) is None]:
        raise ValueError(
            f"{env_name('backend')}=workers: {sys.executable} has no {', '.join(missing)}; install the extra "
            f"'torchserve' or name a Python that has it in {env_name('worker_python')}"
        )


def require_parquet(folder: Path) -> None:
    """Raise ValueError unless the prediction log's files can be written."""
    if find_spec("pyarrow") is None:
        given = f"{env_name('prediction_log_dir')}={folder}"
        raise ValueError(f"{given}: {sys.executable} has no pyarrow; install the extra 'prediction-log'")


def require_collector(address: str) -> None:
    """Raise ValueError unless spans can be sent to a collector at this address."""
    given = f"{env_name('tracing_endpoint')}={HIDDEN if '@' in address or '?' in address else address}"
    try:
        url = urlsplit(address)
        is_host = bool(url.hostname) and url.port != 0 and "@" not in url.netloc
    except ValueError as error:
        raise ValueError(f"{given}: {error}") from error
    if url.scheme not in {"http", "https"} or not is_host or url.path.strip("/") or url.query:
        raise ValueError(f"{given} is no collector's address: http://host:port, or https://host:port")
    if find_spec("opentelemetry.exporter") is None or find_spec("opentelemetry.exporter.otlp.proto.grpc") is None:
        raise ValueError(f"{env_name('tracing')}=otlp needs OpenTelemetry's exporter; install the extra 'tracing'")
