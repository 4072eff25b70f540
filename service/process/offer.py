"""Offers the listening sockets of this gateway to the one that will replace it."""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.process.listening import ListeningSocket
from service.process.meeting_place import MOST_BYTES, SERVING, STATUS, TAKE, MeetingPlace, new_connection, peer_of

logger = logging.getLogger(__name__)

MOST_PEERS = 4


class Offer:
    """Answers new gateways of this user at the meeting place, from `open` to `close`."""

    def __init__(
        self,
        place: MeetingPlace,
        sockets: Sequence[ListeningSocket],
        status: Callable[[], Mapping[str, Any]],
        on_handed_over: Callable[[int], None],
    ) -> None:
        self._place = place
        self._sockets = sockets
        self._status = status
        self._on_handed_over = on_handed_over  # takes the process id of the new gateway, which serves
        self._listener: socket.socket | None = None
        self._inode = 0
        self._peers: set[socket.socket] = set()
        self._taker: socket.socket | None = None  # the peer that has the sockets, but does not serve yet

    def open(self) -> None:
        """Begin to offer. Where that cannot be, the gateway serves all the same, and the log says why."""
        listener = new_connection()
        try:
            try:
                self._inode = self._bind(listener)
            except FileNotFoundError:  # another gateway has just removed the folder, as the last one in it
                self._inode = self._bind(listener)
        except OSError as error:
            listener.close()
            logger.warning("no other gateway can take over the port (TORCHGATE_HANDOVER_DIR): %s", error)
            return
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """Withdraw the offer and remove its file, unless it is the next gateway's by now."""
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        for peer in list(self._peers):
            self._part(peer)
        with contextlib.suppress(OSError):
            with self._place.entered() as folder:
                path = folder / self._place.name
                if path.stat().st_ino == self._inode:
                    path.unlink()
            self._place.folder.rmdir()  # fails while another gateway has its place there

    def _bind(self, listener: socket.socket) -> int:
        """Bind the socket to the meeting place; return its inode."""
        self._place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._place.entered() as folder:
            _sweep(folder)
            new = folder / f".{self._place.name}.{os.getpid()}"
            listener.bind(str(new))
            listener.listen(MOST_PEERS)
            inode = new.stat().st_ino
            new.rename(folder / self._place.name)  # in place of the one before, dead or alive
        return inode

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # the peer is gone again, or descriptors are used up
            peer, _ = self._listener.accept()
            pid, uid = peer_of(peer)
            if uid != os.geteuid() or len(self._peers) >= MOST_PEERS:
                logger.warning(
                    "process %d of user %d may not take over the port: only processes of this gateway's user may ask, "
                    "%d at a time",
                    pid,
                    uid,
                    MOST_PEERS,
                )
                peer.close()
                return
            peer.setblocking(False)
            self._peers.add(peer)
            asyncio.get_running_loop().add_reader(peer, self._answer, peer)

    def _answer(self, peer: socket.socket) -> None:
        """Answer one question of a peer, or note that it has gone."""
        try:
            question = peer.recv(MOST_BYTES).decode()
            if not question:
                self._part(peer)
                return
            document, sockets = self._reply(peer, question)
            socket.send_fds(peer, [json.dumps(document).encode()], [each.fileno() for each in sockets])
        except (OSError, ValueError) as error:
            logger.warning(
                "a gateway that asked for the port has gone, or asked what this release does not know: %s", error
            )
            self._part(peer)

    def _reply(self, peer: socket.socket, question: str) -> tuple[Mapping[str, Any], Sequence[socket.socket]]:
        if question == TAKE and self._taker in {None, peer}:
            self._taker = peer
            names = [each.name for each in self._sockets]
            return {"names": names}, [each.socket for each in self._sockets]
        if question == SERVING and peer is self._taker:
            self._taker = None
            self._on_handed_over(peer_of(peer)[0])  # before the answer: after it, this gateway takes no connection
            return {}, ()
        if question == STATUS:
            return {**self._status(), "pid": os.getpid()}, ()
        return {"refused": "another new gateway is taking over"}, ()

    def _part(self, peer: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(peer)
        peer.close()
        self._peers.discard(peer)
        if peer is self._taker:
            self._taker = None
            logger.warning("the new gateway ended before it served; this one goes on")


def _sweep(folder: Path) -> None:
    """Remove the sockets of gateways that were killed: nobody listens there."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue  # about to be named
        with new_connection() as connection, contextlib.suppress(FileNotFoundError, BlockingIOError):
            connection.setblocking(False)
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
