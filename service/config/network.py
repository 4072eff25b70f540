"""Where the gateway listens, and how long connections last."""

from pydantic import BaseModel, Field


class NetworkSettings(BaseModel):
    """Where the gateway listens, and how long connections last."""

    host: str = Field("127.0.0.1", description="Address that the gateway listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port that it listens on; 0 takes a free one, see the log.")
    keep_alive_seconds: int = Field(
        75, ge=1, description="Time that an idle connection stays open; longer than those in front keep theirs."
    )
    lame_duck_seconds: float = Field(
        0,
        ge=0,
        le=600,
        description="Time after SIGTERM in which /readyz says no while connections are still taken; behind a load "
        "balancer, longer than it takes to notice.",
    )
    drain_seconds: float = Field(
        20, ge=0, description="Time that requests in progress get to end, after that, before the gateway stops."
    )
