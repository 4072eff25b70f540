"""Where a system takes an image, and what is sent there."""

from dataclasses import dataclass, field
from pathlib import Path

# Wherever this stands, in a header or in a body, the generators put the request's own number, as long as it and in
# hexadecimal digits: what a proxy and a client's tracing make new for each request. It reads as base64, too.
MARKER = "requestNumberGoesHere000"
FRESH_HEADERS = {"X-Request-Id": MARKER, "traceparent": f"00-00000000{MARKER}-00f067aa0ba902b7-01"}


@dataclass(frozen=True)
class Endpoint:
    """Where and how a system takes an image."""

    port: int
    path: str
    content_type: str
    bodies: list[Path]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The whole address."""
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers with the content type among them."""
        return {"Content-Type": self.content_type, **self.headers}
