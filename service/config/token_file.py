"""The file with the admin token that a gateway makes where none is set; the command line finds it by the port.

As Jupyter does it: whoever may read the files of the gateway's user may change things, and nobody else.
"""

import logging
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from service.config.environment import env_name

logger = logging.getLogger(__name__)

OWNER_ONLY = 0o600
LONGEST_TOKEN = 1024


class TokenFileUnsafe(Exception):
    """Others than its owner can read or write the file, or it is another user's."""


class NoTokenFolder(Exception):
    """The folder cannot be made or written; the message is for people and names the setting."""


class TokenFile:
    """The token of the gateway that listens on `port`, in `folder`; None is the user's own runtime folder."""

    def __init__(self, folder: Path | None, port: int) -> None:
        self.path = (folder or _runtime_folder()) / f"admin-{port}.token"

    def require_folder(self) -> None:
        """Make the folder if need be; raises NoTokenFolder, for people, if no file can be written into it."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = None if os.access(folder, os.W_OK | os.X_OK) else "nothing can be written into it"
        except OSError as error:
            reason = error.strerror
        if reason is not None:
            raise NoTokenFolder(
                f"{env_name('token_dir')}={folder}: {reason}; name a folder that can be written, or set "
                f"{env_name('admin_token')}"
            )

    def read(self) -> str | None:
        """Return the token, or None if there is no file.

        Raises:
            TokenFileUnsafe: the file is not private to this process's user.
            OSError: it cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise TokenFileUnsafe(f"{self.path} must be a file that only its owner, you, can read")
            return file.read(LONGEST_TOKEN).decode("ascii", "replace").strip() or None

    def token(self, *, is_taking_over: bool) -> str:
        """Return the token of the running gateway if this one takes over its port, else a new one.

        The token of a gateway that was killed is not used again. While nobody listened, another user's program may have
        taken the port, and the command line may have sent it that token.
        """
        if is_taking_over:
            with suppress(OSError, TokenFileUnsafe):
                if (found := self.read()) is not None:
                    return found
        return secrets.token_urlsafe(32)

    @contextmanager
    def holding(self, token: str) -> Iterator[None]:
        """Keep the file, with `token` in it, inside this context; the file of another gateway is not removed."""
        try:
            inode = self._write(token)
        except (OSError, NoTokenFolder) as error:
            logger.warning(
                "nobody knows the admin token, so it allows no changes: %s cannot be written: %s; make room or set "
                "TORCHGATE_ADMIN_TOKEN, and restart",
                self.path,
                error,
            )
            yield
            return
        logger.info("no admin token is set; `torchgate token` prints the one of this gateway, from %s", self.path)
        try:
            yield
        finally:
            with suppress(OSError):
                if self.path.stat().st_ino == inode:
                    self.path.unlink()

    def _write(self, token: str) -> int:
        """Replace the file as a whole; return its inode."""
        self.require_folder()
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, OWNER_ONLY), "w") as file:
            file.write(f"{token}\n")
            inode = os.fstat(file.fileno()).st_ino
        draft.replace(self.path)
        return inode


def own_token(
    folder: Path | None, ports: Sequence[int], *, is_taking_over: bool
) -> tuple[str, AbstractContextManager[None]]:
    """Return the token of a gateway that listens on `ports`, and a context inside which their files have it."""
    files = [TokenFile(folder, port) for port in ports]
    token = files[0].token(is_taking_over=is_taking_over)

    @contextmanager
    def holding() -> Iterator[None]:
        with ExitStack() as stack:
            for file in files:
                stack.enter_context(file.holding(token))
            yield

    return token, holding()


def _runtime_folder() -> Path:
    """Return where programs of this user find each other: $XDG_RUNTIME_DIR, else the user's state folder."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "torchgate"
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "torchgate"
