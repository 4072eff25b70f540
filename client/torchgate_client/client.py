"""The client."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

import httpx

from torchgate_client import calls
from torchgate_client.answers import Answer, Event, Feedback, Model, Rollout, Shadow, Traffic, Version
from torchgate_client.calls import Call
from torchgate_client.errors import TorchgateError
from torchgate_client.images import Image
from torchgate_client.sender import Options, Sender

T = TypeVar("T")
POLL_SECONDS = 0.2


class Client(Sender):
    """A gateway. Keep one and share it among threads: it reuses its connections."""

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        """Connect when the first call is made; see `Options` for what can be given."""
        super().__init__(url, **options)
        self._client = httpx.Client(**self.options)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, call: Call[T]) -> T:
        """Make a call, again if need be; raises TorchgateError."""
        patience = self.patience(call)
        while True:
            try:
                answer = self._client.request(call.method, call.path, **self.arguments(call, patience.seconds_left))
                return self.read(call, answer)
            except (TorchgateError, httpx.TransportError) as failure:
                if (pause := patience.pause_after(failure)) is None:
                    raise self.explained(failure) from failure
            time.sleep(pause)

    def predict(
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
        return self.send(calls.predict(images, model, version, label, top_k, deadline_ms, priority, routing_key))

    def feedback(self, answer: Answer | str, label: str, *, index: int = 0) -> Feedback:
        """Say what an image of an answer really was."""
        return self.send(calls.feedback(answer, label, index))

    def ready(self) -> str:
        """Return why something is not ready yet, or ""; raises Unavailable while the default model does not answer."""
        return self.send(calls.ready())

    def wait_until_ready(self, seconds: float = 300) -> None:
        """Return once the default model answers; raises the last error if it does not in time."""
        end = time.monotonic() + seconds
        while True:
            try:
                self.ready()
            except TorchgateError:
                if time.monotonic() > end:
                    raise
            else:
                return
            time.sleep(POLL_SECONDS)

    def models(self) -> list[Model]:
        """List every model."""
        return self.send(calls.models())

    def model(self, name: str) -> Model:
        """Show one model."""
        return self.send(calls.model(name))

    def register(self, model: str, file: str, *, num_workers: int | None = None, reason: str = "") -> Version:
        """Load an archive of the model store; the version gets no traffic yet."""
        return self.send(calls.register(model, file, num_workers, reason))

    def scale(self, model: str, version: str, num_workers: int, *, reason: str = "") -> Version:
        """Change a version's number of workers."""
        return self.send(calls.scale(model, version, num_workers, reason))

    def unregister(self, model: str, version: str, *, reason: str = "") -> None:
        """Drain and unload a version without traffic."""
        self.send(calls.unregister(model, version, reason))

    def traffic(self, model: str) -> Traffic:
        """Show how a model's requests are divided."""
        return self.send(calls.traffic(model))

    def set_traffic(
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
        return self.send(calls.set_traffic(model, weights, shadows, sticky_header, based_on, reason))

    def rollback(self, model: str, *, reason: str = "") -> Traffic:
        """Return all traffic to the version that last had 100 %."""
        return self.send(calls.rollback(model, reason))

    def set_label(
        self, model: str, label: str, version: str, *, based_on: Traffic | None = None, reason: str = ""
    ) -> Traffic:
        """Point a label at a ready version."""
        return self.send(calls.set_label(model, label, version, based_on, reason))

    def delete_label(self, model: str, label: str, *, based_on: Traffic | None = None, reason: str = "") -> Traffic:
        """Remove a label."""
        return self.send(calls.delete_label(model, label, based_on, reason))

    def shadows(self, model: str) -> list[Shadow]:
        """Compare the shadows' answers with the callers'."""
        return self.send(calls.shadows(model))

    def quality(self, model: str) -> dict[str, Any]:
        """Show the quality of each version's recent answers, as the API has it."""
        return self.send(calls.quality(model))

    def events(self, model: str, *, limit: int | None = None, before: int | None = None) -> list[Event]:
        """List changes and refusals, the newest first."""
        return self.send(calls.events(model, limit, before))

    def rollouts(self, model: str) -> list[Rollout]:
        """List the last rollouts, the newest first."""
        return self.send(calls.rollouts(model))

    def rollout(self, model: str, number: int) -> Rollout:
        """Show a rollout, with its guards."""
        return self.send(calls.rollout(model, number))

    def start_rollout(self, model: str, version: str, *, reason: str = "", **options: Any) -> Rollout:
        """Start a guarded rollout; the options are those of the API, such as steps and min_requests."""
        return self.send(calls.start_rollout(model, version, options, reason))

    def pause_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Pause a rollout at its present step."""
        return self.send(calls.move_rollout(model, number, "pause", reason))

    def resume_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Continue a rollout with its next step."""
        return self.send(calls.move_rollout(model, number, "resume", reason))

    def promote_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Give a rollout's version all of the traffic now."""
        return self.send(calls.move_rollout(model, number, "promote", reason))

    def abort_rollout(self, model: str, number: int, *, reason: str = "") -> Rollout:
        """Return all traffic to the stable version."""
        return self.send(calls.move_rollout(model, number, "abort", reason))

    def profile(
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
        return self.send(calls.profile(model, version, num_batches, wait_seconds, trace, reason))
