"""The program of one worker process: it ends with the gateway, and speaks TorchServe's worker protocol on a socket.

Run as a file, by a Python that has torchserve and need not have this package: `python -P launch.py PARENT_PID FD`.
It imports torch before it is told what to load, so that a spare worker starts quickly.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

logger = logging.getLogger("torchgate")

PR_SET_PDEATHSIG = 1
# The gateway first, where there are fewer cores than processes: what it reads, refuses and hands over takes it
# microseconds, and all callers wait for it, while a worker is busy for milliseconds with one batch.
NICENESS = 10
READ_BYTES = 64 * 1024
INT = struct.Struct("!i")
END_OF_LIST = -1
PREDICT = b"I"
PREDICTION_METRIC = "PredictionTime"
STREAMED = "ts_stream_next"  # the header of an answer that comes bit by bit
LONGEST_REASON = 2000


class Connection:
    """The gateway's socket as TorchServe's worker uses it, read through a buffer.

    TorchServe's own reader asks for every length and every name on its own, some 200 system calls for a batch of 32
    images, and gathers each in a bytearray; what it reads of a batch is read here, the same values as bytes.
    """

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._data = b""
        self._at = 0
        self.sendall = raw.sendall

    def recv(self, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes; exit if the gateway has closed the connection."""
        end = self._at + num_bytes
        if end > len(self._data):
            self._fill(num_bytes)
            end = num_bytes
        part = self._data[self._at : end]
        self._at = end
        return part

    def next_is(self, command: bytes) -> bool:
        """Wait for the next command and tell whether it is this one, which is taken then."""
        if self.recv(1) == command:
            return True
        self._at -= 1
        return False

    def requests(self) -> list[dict[str, Any]]:
        """Read the requests of a batch, as TorchServe's service wants them."""
        found: list[dict[str, Any]] = []
        while (name := self._sized()) is not None:
            headers: list[dict[str, Any]] = []
            parameters: list[dict[str, Any]] = []
            found.append({"requestId": name, "headers": headers, "parameters": parameters})
            while (name := self._sized()) is not None:
                headers.append({"name": name, "value": self._sized()})
            while (name := self._sized()) is not None:
                kind = self._sized() or b""
                parameters.append({"name": name.decode(), "contentType": kind.decode(), "value": self._sized()})
        return found

    def _sized(self) -> bytes | None:
        """Read bytes behind their number; None at the end of a list."""
        (num_bytes,) = INT.unpack(self.recv(INT.size))
        if num_bytes < 0:
            if num_bytes != END_OF_LIST:  # reading on would go back in the buffer, for ever
                raise ValueError(f"the gateway sent a length of {num_bytes}")
            return None
        return self.recv(num_bytes)

    def _fill(self, num_bytes: int) -> None:
        """Read until the buffer has at least `num_bytes` unread bytes, at its beginning."""
        pieces = [self._data[self._at :]]
        missing = num_bytes - len(pieces[0])
        while missing > 0:
            if not (piece := self._raw.recv(max(missing, READ_BYTES))):
                sys.exit(0)
            pieces.append(piece)
            missing -= len(piece)
        self._data, self._at = b"".join(pieces), 0


def pack_answer(answer: Any, request: str, message: str, code: int, context: Any) -> bytes | None:
    """Return one request's answer as TorchServe writes it, or None where it is not bytes, or not all of them.

    TorchServe packs some twenty numbers one by one and looks into the environment; for a lone image none of that
    code is in a cache. `context` has what the handler said of its answer.
    """
    headers = context.get_response_headers(0)
    if type(answer) is not bytes or context.stopping_criteria or STREAMED in headers:
        return None
    status, reason = context.get_response_status(0)
    pieces = [INT.pack(code), _sized(message), _sized(request), _sized(headers.get("content-type") or "")]
    pieces += (INT.pack(200 if status is None else status), _sized(reason or ""), INT.pack(len(headers)))
    pieces += [_sized(text) for header in headers.items() for text in header]
    return b"".join((*pieces, INT.pack(len(answer)), answer, INT.pack(END_OF_LIST)))


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that happens."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it went before the kernel was asked
        sys.exit(1)


def reason_of(error: BaseException) -> str:
    """Name an exception in one line; for TorchServe's "no such handler", the exception of its import."""
    while isinstance(error, ImportError) and error.__context__ is not None:
        error = error.__context__
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:LONGEST_REASON].rstrip(".")


def serve(connection: Connection) -> None:
    """Answer the gateway until it closes the connection."""
    import ts  # noqa: PLC0415 - the kernel is asked first: this takes seconds
    from ts import model_service_worker, service  # noqa: PLC0415
    from ts.model_loader import ModelLoaderFactory  # noqa: PLC0415

    metrics = Path(ts.__file__).parent / "configs" / "metrics.yaml"
    worker = model_service_worker.TorchModelServiceWorker("unix", "unused.0", metrics_config=str(metrics))

    def load(request: dict[str, Any]) -> tuple[Any, str, int]:
        """Load as TorchServe's own method does, which keeps the reason of a failure to itself."""
        name, folder, handler = (bytes(request[key]).decode() for key in ("modelName", "modelPath", "handler"))
        sys.path.insert(0, folder)
        os.chdir(folder)
        worker.metrics_cache.model_name = name
        try:
            service = ModelLoaderFactory.get_model_loader().load(
                name, folder, handler, request.get("gpu"), request["batchSize"], None, True, worker.metrics_cache
            )
        except Exception as error:  # whatever a foreign handler raises: it is told to the gateway
            logger.exception("%s cannot be loaded", name)
            return None, reason_of(error), 500
        return service, "loaded", 200

    retrieve_any, pack_any = model_service_worker.retrieve_msg, service.create_predict_response
    add_time = worker.metrics_cache.add_time

    def retrieve(connection: Connection) -> tuple[bytes, Any]:
        return (PREDICT, connection.requests()) if connection.next_is(PREDICT) else retrieve_any(connection)

    def pack(answers: Any, requests: dict[int, str], message: str, code: int, context: Any = None) -> Any:
        is_one = context is not None and len(requests) == 1
        packed = pack_answer(answers[0], requests[0], message, code, context) if is_one else None
        return pack_any(answers, requests, message, code, context) if packed is None else packed

    def add(name: str, *arguments: Any, **options: Any) -> None:
        """Add a handler's own; what TorchServe measures of each batch, the gateway measures itself."""
        if name != PREDICTION_METRIC:
            add_time(name, *arguments, **options)

    worker.load_model, model_service_worker.retrieve_msg = load, retrieve
    service.create_predict_response, worker.metrics_cache.add_time = pack, add
    worker.handle_connection(connection)


def main() -> None:
    """Run one worker; its exit status is 0 when the gateway closed the connection."""
    parent, descriptor = int(sys.argv[1]), int(sys.argv[2])
    end_with(parent)
    with contextlib.suppress(OSError):  # if memory runs out, rather a worker than the gateway
        Path("/proc/self/oom_score_adj").write_text("500")
    os.nice(NICENESS)
    faulthandler.enable()
    # TorchServe's workers note every batch at INFO.
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.WARNING)
    serve(Connection(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
