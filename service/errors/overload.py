"""More is asked for than can be answered in time; the branch of errors/gateway.py for requests to send again later."""

from dataclasses import dataclass

from service.errors.gateway import GatewayError


class OverloadError(GatewayError):
    """More is asked for than can be answered in time."""

    status = 429


@dataclass(eq=False)
class QueueFull(OverloadError):
    """The version's queue holds as many images as it may."""

    target: str
    num_waiting: int
    retry_after_seconds: int
    code = "queue_full"
    sentence = "{num_waiting} images already wait for {target}; try again later."
    hint = "Slow down and try again after Retry-After, or add workers."


@dataclass(eq=False)
class ShareExceeded(OverloadError):
    """The queue is full, and you already have your share of it."""

    target: str
    retry_after_seconds: int
    code = "share_exceeded"
    sentence = "The queue for {target} is full, and your requests have their share of it; try again later."
    hint = "Slow down and try again after Retry-After."


@dataclass(eq=False)
class QuotaExceeded(OverloadError):
    """You used up your quota of images per second."""

    retry_after_seconds: int
    code = "quota_exceeded"
    sentence = "You have sent as many images as your quota allows; try again in {retry_after_seconds} s."
    hint = "Try again after Retry-After, or ask the operator for a larger quota."


@dataclass(eq=False)
class DeadlineUnreachable(OverloadError):
    """The queued work would outlast the request's deadline."""

    left_ms: int
    expected_ms: int
    retry_after_seconds: int
    code = "deadline_unreachable"
    sentence = "The answer would take about {expected_ms} ms, the deadline leaves {left_ms} ms; try again later."
    hint = "Try again after Retry-After, send a longer X-Deadline-Ms, or add workers."


@dataclass(eq=False)
class BuffersFull(OverloadError):
    """Request bodies use all the memory that is set aside for them."""

    limit_bytes: int
    code = "buffers_full"
    sentence = (
        "The bodies of your requests, or of all requests, take too much of the {limit_bytes} bytes for them; "
        "try again later, or send less at a time."
    )
    hint = "Try again after Retry-After, or send smaller requests. The limit is TORCHGATE_MAX_BUFFERED_BYTES."
    retry_after_seconds = 1
