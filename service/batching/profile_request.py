"""An order for profiles of one version's next batches."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.domain.backend import Backend, BatchAnswer, BatchOptions, ProfileKind, Target
from service.errors.admin import ProfileUnsupported
from service.errors.gateway import BackendFailed, GatewayError

# Limit for all traces of an order together, as received; the handler bounds each.
MAX_TRACE_CHARACTERS = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProfiledBatch:
    """The handler's profile of one batch."""

    num_items: int
    profile: Mapping[str, Any]


class ProfileRequest:
    """Profiles the batches sent through it until there are enough. A batch that fails ends the order only."""

    def __init__(self, backend: Backend, num_batches: int, kind: ProfileKind) -> None:
        self.batches: list[ProfiledBatch] = []
        self.error: GatewayError | None = None
        self.done = asyncio.Event()
        self._backend = backend
        self._num_batches = num_batches
        self._num_unsent = num_batches
        self._kind = kind
        self._num_characters = 0

    @property
    def is_wanting(self) -> bool:
        """Return whether the next batch will be profiled."""
        return self._num_unsent > 0

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Answer one batch, and profile it while the order wants more; see Backend.predict."""
        if not self._num_unsent:
            return await self._backend.predict(target, items, options, timeout_seconds)
        self._num_unsent -= 1
        try:
            asked = replace(options, profile=self._kind)
            answer = await self._backend.predict(target, items, asked, timeout_seconds)
        except GatewayError as error:
            # The profile itself may be the cause: the batch is tried again without one.
            self._end(error)
            raise
        except BaseException:  # most likely cancelled: another batch takes its place
            self._num_unsent += 1
            raise
        self._take(target, len(items), answer.profile)
        return answer

    def _take(self, target: Target, num_items: int, profile: Mapping[str, Any] | None) -> None:
        if profile is None:
            self._end(ProfileUnsupported(str(target)))
            return
        if not isinstance(profile, dict) or "error" in profile:
            self._end(BackendFailed(f"the batch was answered, but not profiled: {str(profile)[:300]}"))
            return
        self._num_characters += len(str(profile.get("trace") or ""))
        if self._num_characters > MAX_TRACE_CHARACTERS:
            profile, self._kind = {**profile, "trace": None}, "table"
        self.batches.append(ProfiledBatch(num_items, profile))
        if len(self.batches) == self._num_batches:
            self.done.set()

    def _end(self, error: GatewayError) -> None:
        self._num_unsent = 0
        self.error = self.error or error
        self.done.set()
