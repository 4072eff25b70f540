"""Where decisions are kept, and for how long."""

from pathlib import Path

from pydantic import BaseModel, Field


class StateSettings(BaseModel):
    """Where decisions are kept, and for how long."""

    database_url: str | None = Field(
        None,
        description="Database for traffic, labels and events: `sqlite:///` or `postgresql://`. Unset is torchgate.db "
        "in the model store.",
    )
    database_url_file: Path | None = Field(None, description="File with the value of TORCHGATE_DATABASE_URL.")
    database_poll_seconds: float = Field(
        0.5, gt=0, le=60, description="Pause between two looks for changes by other gateways."
    )
    feedback_seconds: float = Field(604_800, gt=0, description="Age up to which an answer accepts feedback.")
    feedback_retention_days: int = Field(
        90,
        ge=1,
        description="Age at which feedback is deleted, once its answer accepts no more feedback.",
    )
    event_retention_days: int = Field(
        400, ge=1, description="Age at which events are deleted. The newest 1,000 always stay."
    )
    event_retention_rows: int = Field(
        1_000_000,
        ge=1000,
        description="Largest number of events, of all models together; the oldest are deleted first.",
    )
