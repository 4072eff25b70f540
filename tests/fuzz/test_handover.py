"""What a new gateway is told when it starts: by the running one, which may be of any release, and by systemd."""

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given

from service.process.listening import CannotListen
from service.process.old_gateway import HandoverFailed, OldGateway, Status
from service.process.systemd import Supervisor, inherited_sockets
from tests.fuzz.cost import bounded
from tests.fuzz.profile import fuzzed

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = st.text(max_size=9)
ANY_JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
STATUS = {"pid": 7, "release": "2.0", "ready": ["digits 1.0"]}
TAKEN = {"names": ["http"]}


def documents(valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Return answers: as they should be, with another value at one place, of another form, or no JSON."""
    changed = st.tuples(st.sampled_from([*valid, "refused"]), ANY_JSON).map(
        lambda change: {**valid, change[0]: change[1]}
    )
    whole = st.just(valid) | changed | ANY_JSON
    return whole.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=40)


def told(answer: bytes, kinds: Sequence[str]) -> tuple[OldGateway, contextlib.ExitStack]:
    """Return a running gateway that answers so, with descriptors of these kinds."""
    with contextlib.ExitStack() as stack:
        ours, theirs = (stack.enter_context(each) for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        ours.settimeout(5)
        descriptors = []
        for kind in kinds:
            if kind == "socket":
                descriptors.append(stack.enter_context(socket.socket()).fileno())
            else:
                descriptors.append(os.open("/dev/null", os.O_RDONLY))
                stack.callback(os.close, descriptors[-1])
        if answer:
            socket.send_fds(theirs, [answer], descriptors)
        else:
            theirs.close()
        return OldGateway(ours), stack.pop_all()


def num_open() -> int:
    """Return the number of this process's descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


def require_short(error: Exception) -> None:
    assert len(str(error)) < 1000


KINDS = st.lists(st.sampled_from(["socket", "file"]), max_size=3)


@fuzzed(200)
@example(answer=b"[" * 60_000, kinds=[])
@example(answer=b'{"pid": 1%b}' % (b"0" * 5000), kinds=[])
@example(answer=b'{"pid": 1e999, "release": "", "ready": []}', kinds=["file", "socket"])
@given(answer=documents(STATUS), kinds=KINDS)
def test_a_status_is_read_or_no_handover(answer: bytes, kinds: list[str]) -> None:
    before = num_open()
    old, stack = told(answer, kinds)
    with stack, bounded(len(answer), bytes_per_byte=200):
        try:
            status = old.status()
        except HandoverFailed as error:
            require_short(error)
        else:
            assert isinstance(status, Status)
            assert all(isinstance(each, str) for each in (status.release, *status.ready))
    assert num_open() == before


@fuzzed(200)
@example(answer=json.dumps(TAKEN).encode(), kinds=["socket"])
@example(answer=json.dumps(TAKEN).encode(), kinds=["socket", "socket"])
@example(answer=json.dumps(TAKEN).encode(), kinds=["file"])
@given(answer=documents(TAKEN), kinds=KINDS)
def test_sockets_are_taken_or_no_handover_and_none_is_left_open(answer: bytes, kinds: list[str]) -> None:
    before = num_open()
    old, stack = told(answer, kinds)
    with stack, bounded(len(answer), bytes_per_byte=200):
        try:
            taken = old.take()
        except HandoverFailed as error:
            require_short(error)
        else:
            assert len(taken) == len(kinds)
            assert not any(os.get_inheritable(each.socket.fileno()) for each in taken)
            for each in taken:
                each.socket.close()
    assert num_open() == before


# No name is of use here, so that none of this process's own descriptors is looked at.
@fuzzed(200)
@example(count="9" * 5000, names="")
@example(count="9" * 18, names="http")
@given(count=st.text("0123456789\u0663-+ .", max_size=22), names=st.text("http:admin", max_size=12))
def test_sockets_of_systemd_are_understood_or_refused(count: str, names: str) -> None:
    environ = {"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names}
    with bounded(len(count)):
        try:
            assert inherited_sockets(environ, []) == ()
        except CannotListen as error:
            require_short(error)
    assert not environ


@fuzzed(200)
@example(usec="9" * 5000, pid="")
@given(usec=st.text("0123456789\u0663-+ .e", max_size=22), pid=st.sampled_from(["", "1", str(os.getpid())]))
def test_a_watchdogs_time_is_a_time(usec: str, pid: str) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid})
    assert 0 <= supervisor.watchdog_seconds < 1e18
