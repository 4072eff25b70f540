# Written by `python -m deploy.reference.make` from client.py: change that file.
"""The client for asyncio and trio."""

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

import anyio
import httpx

from torchgate_client import calls
from torchgate_client.answers import Answer, Event, Feedback, Model, Rollout, Shadow, Traffic, Version
from torchgate_client.calls import Call
from torchgate_client.errors import TorchgateError
from torchgate_client.images import Image
from torchgate_client.sender import Options, Sender

T = TypeVar("T")
POLL_SECONDS = 0.2


class AsyncClient(Sender):
    """A gateway. Keep one: it reuses its connections."""

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        """Connect when the first call is made; see `Options` for what can be given."""
        super().__init__(url, **options)
        self._client = httpx.AsyncClient(**self.options)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, call: Call[T]) -> T:
        """Make a call, again if need be; raises TorchgateError."""
        patience = self.patience(call)
        while True:
            try:
                answer = await self._client.request(call.method, call.path, **self.arguments(call, patience.seconds_left))
                return self.read(call, answer)
            except (TorchgateError, httpx.TransportError) as failure:
                if (pause := patience.pause_after(failure)) is None:
                    raise self.explained(failure) from failure
            await anyio.sleep(pause)

    async def predict(
        self,
        images: Image | Sequence[Image],
        *,
        model: str | None = None,
        version: str | None = None,
        label: str | None = None,
        top_k: int | None = None,
        deadline_ms: int | None = None,
        priority: str | None = None,
        routing_key: str | None = None,
    ) -> Answer:
        """Classify an image (a path, bytes, an image of Pillow, an array) or a list of them."""
        return await self.send(calls.predict(images, model, version, label, top_k, deadline_ms, priority, routing_key))

    async def feedback(self, answer: Answer | str, label: str, *, index: int = 0) -> Feedback:
        """Say what an image of an answer really was."""
        return await self.send(calls.feedback(answer, label, index))

    async def ready(self) -> str:
        """Return why something is not ready yet, or ""; raises Unavailable while the default model does not answer."""
        return await self.send(calls.ready())

    async def wait_until_ready(self, seconds: float = 300) -> None:
        """Return once the default model answers; raises the last error if it does not in time."""
        end = anyio.current_time() + seconds
        while True:
            try:
                await self.ready()
            except TorchgateError:
                if anyio.current_time() > end:
                    raise
            else:
                return
            await anyio.sleep(POLL_SECONDS)

    async def models(self) -> list[Model]:
        """List every model."""
        return await self.send(calls.models())

    async def model(self, name: str) -> Model:
        """Show one model."""
        return await self.send(calls.model(name))

    async def register(self, model: str, file: str, *, num_workers: int | None = None, reason: str = "") -> Version:
        """Load an archive of the model store; the version gets no traffic yet."""
        return await self.send(calls.register(model, file, num_workers, reason))

    async def scale(self, model: str, version: str, num_workers: int, *, reason: str = "") -> Version:
        """Change a version's number of workers."""
        return await self.send(calls.scale(model, version, num_workers, reason))

    async def unregister(self, model: str, version: str, *, reason: str = "") -> None:
        """Drain and unload a version without traffic."""
        await self.send(calls.unregister(model, version, reason))

    async def traffic(self, model: str) -> Traffic:
        """Show how a model's requests are divided."""
        return await self.send(calls.traffic(model))

    async def set_traffic(
        self,
        model: str,
        weights: Mapping[str, float],
        *,
        shadows: Mapping[str, float] | None = None,
        sticky_header: str | None = None,
        based_on: Traffic | None = None,
        reason: str = "",
    ) -> Traffic:
        """Divide a model's requests, in percent. With `based_on`, only if nothing has changed since that was read."""
        return await self.send(calls.set_traffic(model, weights, shadows, sticky_header, based_on, reason))

    async def rollback(self, model: str, *, reason: str = "") -> Traffic:
        """Return all traffic to the version that last had 100 %."""
        return await self.send(calls.rollback(model, reason))

    async def set_label(
        self, model: str, label: str, version: str, *, based_on: Traffic | None = None, reason: str = ""
    ) -> Traffic:
        """Point a label at a ready version."""
        return await self.send(calls.set_label(model, label, version, based_on, reason))

    async def delete_label(self, model: str, label: str, *, based_on: Traffic | None = None, reason: str = "") -> Traffic:
        """Remove a label."""
        return await self.send(calls.delete_label(model, label, based_on, reason))

    async def shadows(self, model: str) -> list[Shadow]:
        """Compare the shadows' answers with the callers'."""
        return await self.send(calls.shadows(model))

    async def quality(self, model: str) -> dict[str, Any]:
        """Show the quality of each version's recent answers, as the API has it."""
        return await self.send(calls.quality(model))

    async def events(self, model: str, *, limit: int | None = None, before: int | None = None) -> list[Event]:
        """List changes and refusals, the newest first."""
        return await self.send(calls.events(model, limit, before))

    async def rollouts(self, model: str) -> list[Rollout]:
        """List the last rollouts, the newest first."""
        return await self.send(calls.rollouts(model))

    async def rollout(self, model: str, number: int) -> Rollout:
        """Show a rollout, with its guards."""
        return await self.send(calls.rollout(model, number))

    async def start_rollout(self, model: str, version: str, *, reason: str = "", **options: Any) -> Rollout:
        """Start a guarded rollout; the options are those of the API, such as steps and min_requests."""
        return await self.send(calls.start_rollout(model, version, options, reason))

    async def pause_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Pause a rollout at its present step."""
        return await self.send(calls.move_rollout(model, number, "pause", reason))

    async def resume_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Continue a rollout with its next step."""
        return await self.send(calls.move_rollout(model, number, "resume", reason))

    async def promote_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Give a rollout's version all of the traffic now."""
        return await self.send(calls.move_rollout(model, number, "promote", reason))

    async def abort_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Return all traffic to the stable version."""
        return await self.send(calls.move_rollout(model, number, "abort", reason))

    async def profile(
        self,
        model: str,
        version: str,
        *,
        num_batches: int | None = None,
        wait_seconds: float | None = None,
        trace: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Profile a version's next batches: the share of time of each operator, as the API has it.

        With `trace`, the field `trace` of the answer is a Chrome trace of them, gzip as base64.
        """
        return await self.send(calls.profile(model, version, num_batches, wait_seconds, trace, reason))
