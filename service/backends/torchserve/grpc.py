"""Batches to TorchServe over gRPC."""

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio

from service.backends.packed_request import packed_fields, parse_answer
from service.backends.torchserve.failures import failure
from service.backends.torchserve.inference_pb2 import PredictionResponse, PredictionsRequest
from service.domain.backend import BatchAnswer, BatchOptions, Target
from service.errors.gateway import BackendError, BackendFailed, BackendTimeout, BackendUnavailable

PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # batches are bounded by the gateway's own limits
    ("grpc.max_receive_message_length", -1),
    # TorchServe comes back within seconds of a restart; gRPC's own back-off would go up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel would go on with the old one's connection
)


class _Connection:
    """A channel, and when it last brought an answer."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.predictions = self.channel.unary_unary(
            PREDICTIONS,
            request_serializer=PredictionsRequest.SerializeToString,
            response_deserializer=PredictionResponse.FromString,
        )
        self.last_answer = time.monotonic()


class GrpcBackend:
    """Answers batches through TorchServe's gRPC inference API."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._closing: set[asyncio.Task[None]] = set()

    def num_slots(self, num_workers: int) -> int:
        """Return one batch per worker and one that waits at the server, so that no worker idles in between."""
        return num_workers + 1

    async def start(self) -> None:
        """Open the channel; it connects when the first batch needs it."""
        self._connection = _Connection(self._address)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Send one batch as one `input` map; see Backend.predict."""
        fields = dict(packed_fields(items, options))
        request = PredictionsRequest(model_name=target.model, model_version=target.version, input=fields)
        connection, started = self._connection, time.monotonic()
        try:
            response: PredictionResponse = await connection.predictions(
                request, timeout=timeout_seconds, metadata=options.headers or None
            )
        except grpc.aio.AioRpcError as error:
            is_late = time.monotonic() - started >= timeout_seconds
            if is_late and connection.last_answer < started and connection is self._connection:
                self._replace(timeout_seconds)
            raise _translate(error, is_late, timeout_seconds) from error
        connection.last_answer = time.monotonic()
        return parse_answer(response.prediction)

    async def close(self) -> None:
        """Close the channels."""
        await asyncio.gather(self._connection.channel.close(), *self._closing)

    def _replace(self, grace_seconds: float) -> None:
        """Connect anew: where packets are lost without a word, the kernel keeps a connection for 15 minutes.

        Pings would tell it sooner, but servers of grpc-java allow one in five minutes.
        """
        old, self._connection = self._connection, _Connection(self._address)
        closing = asyncio.create_task(old.channel.close(grace_seconds))  # the batches that are on it may still come
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _translate(error: grpc.aio.AioRpcError, is_late: bool, timeout_seconds: float) -> BackendError:
    details = " ".join((error.details() or "").split())[:300]
    code = error.code()
    # Both ends keep the deadline; where the server is first, it calls that a cancellation.
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or (is_late and code is grpc.StatusCode.CANCELLED):
        return BackendTimeout(round(timeout_seconds * 1000))
    is_away = code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return failure(f"{code.name}: {details}", BackendUnavailable if is_away else BackendFailed)
