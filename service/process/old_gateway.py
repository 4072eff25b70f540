"""The running gateway, as the one that replaces it sees it."""

import json
import os
import socket
from collections.abc import Sequence
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
        document, _ = self._ask(STATUS)
        return Status(document["pid"], document["release"], frozenset(document["ready"]))

    def take(self) -> Sequence[ListeningSocket]:
        """Return its listening sockets, on which both gateways take connections from now on."""
        document, sockets = self._ask(TAKE)
        return [ListeningSocket(name, each) for name, each in zip(document["names"], sockets, strict=True)]

    def relieve(self) -> None:
        """Have it stop listening, drain and exit: this gateway serves."""
        self._ask(SERVING)

    def close(self) -> None:
        """Part from it."""
        self._connection.close()

    def _ask(self, question: str) -> tuple[dict[str, Any], list[socket.socket]]:
        try:
            self._connection.sendall(question.encode())
            answer, descriptors, _, _ = socket.recv_fds(self._connection, MOST_BYTES, MOST_SOCKETS)
        except OSError as error:
            raise OldGatewayGone(f"the running gateway does not answer: {error}") from error
        sockets = [socket.socket(fileno=each) for each in descriptors]
        for each in sockets:
            each.set_inheritable(False)
        if not answer:
            raise OldGatewayGone("the running gateway has ended")
        document: dict[str, Any] = json.loads(answer)
        if "refused" in document:
            raise HandoverFailed(document["refused"])
        return document, sockets
