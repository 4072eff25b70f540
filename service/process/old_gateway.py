"""The running gateway, as the one that replaces it sees it."""

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from service.process.listening import ListeningSocket
from service.process.meeting_place import (
    MOST_BYTES,
    MOST_SOCKETS,
    SERVING,
    STATUS,
    TAKE,
    MeetingPlace,
    new_connection,
    peer_of,
)

LONGEST_TOLD = 300  # of what it says, in an error
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
ANSWER_SECONDS = 10.0  # an old gateway under load answers late


class HandoverFailed(Exception):
    """The running gateway does not hand over; the message is for people."""


class OldGatewayGone(HandoverFailed):
    """The running gateway has ended, or does not answer."""


@dataclass(frozen=True)
class Status:
    """What a running gateway says of itself."""

    pid: int
    release: str
    ready: frozenset[str]  # the versions that it can answer with


class OldGateway:
    """A connection to the running gateway. Everything blocks and raises HandoverFailed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def find(cls, place: MeetingPlace) -> Self | None:
        """Return the gateway that can be met at this place; None if there is none."""
        connection = new_connection()
        try:
            with place.entered() as folder:
                connection.settimeout(ANSWER_SECONDS)
                connection.connect(str(folder / place.name))
            if peer_of(connection)[1] != os.geteuid():
                raise PermissionError("the gateway there is another user's")
        except (FileNotFoundError, ConnectionRefusedError):  # there is none, or it was killed
            connection.close()
            return None
        except OSError as error:
            connection.close()
            raise HandoverFailed(f"{place.path} (TORCHGATE_HANDOVER_DIR): {error}") from error
        return cls(connection)

    def status(self) -> Status:
        """Return what it says of itself."""
        document, sockets = self._ask(STATUS)
        with _understood():
            _close(sockets)
            return Status(int(document["pid"]), str(document["release"]), frozenset(map(str, document["ready"])))

    def take(self) -> Sequence[ListeningSocket]:
        """Return its listening sockets, on which both gateways take connections from now on."""
        document, sockets = self._ask(TAKE)
        with _understood(sockets):
            return [ListeningSocket(str(name), each) for name, each in zip(document["names"], sockets, strict=True)]

    def relieve(self) -> None:
        """Have it stop listening, drain and exit: this gateway serves."""
        _close(self._ask(SERVING)[1])

    def close(self) -> None:
        """Part from it."""
        self._connection.close()

    def _ask(self, question: str) -> tuple[dict[str, Any], list[socket.socket]]:
        try:
            self._connection.sendall(question.encode())
            answer, descriptors, _, _ = socket.recv_fds(self._connection, MOST_BYTES, MOST_SOCKETS)
        except OSError as error:
            raise OldGatewayGone(f"the running gateway does not answer: {error}") from error
        sockets: list[socket.socket] = []
        with _understood(sockets):
            sockets += _opened(descriptors)
            if not answer:
                raise OldGatewayGone("the running gateway has ended")
            document: dict[str, Any] = json.loads(answer)
            if "refused" in document:
                raise HandoverFailed(str(document["refused"])[:LONGEST_TOLD])
            document.items()  # of an object; anything else has none
        return document, sockets


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _opened(descriptors: Sequence[int]) -> Sequence[socket.socket]:
    """Return the sockets behind descriptors that were sent; OSError, and none is open, if one of them is none."""
    with contextlib.ExitStack() as failed:
        for each in descriptors:
            failed.callback(os.close, each)
        for each in descriptors:
            os.set_inheritable(each, False)
            if not stat.S_ISSOCK(os.fstat(each).st_mode):
                raise OSError(errno.ENOTSOCK, "what it sent is no socket")
        failed.pop_all()
    return [socket.socket(fileno=each) for each in descriptors]


@contextlib.contextmanager
def _understood(sockets: Iterable[socket.socket] = ()) -> Iterator[None]:
    """Raise HandoverFailed for an answer of another form; on any failure, close what came with it."""
    try:
        yield
    except BaseException as error:
        _close(sockets)
        if isinstance(error, UNREADABLE):
            told = repr(error)[:LONGEST_TOLD]
            raise HandoverFailed(f"the running gateway's answer is none of this release: {told}") from error
        raise
