"""Where decisions are kept, and for how long."""

from pathlib import Path

from pydantic import BaseModel, Field


class StateSettings(BaseModel):
    """Where decisions are kept, and for how long."""

    database_url: str | None = Field(
        None,
        description="Where traffic, labels and events are kept: sqlite:/// or postgresql://; unset is torchgate.db in "
        "the model store.",
    )
    database_url_file: Path | None = Field(None, description="File with the value of TORCHGATE_DATABASE_URL.")
    database_poll_seconds: float = Field(
        0.5, gt=0, le=60, description="Pause between two looks for changes of other gateways."
    )
    feedback_seconds: float = Field(604_800, gt=0, description="Age up to which answers take feedback.")
    feedback_retention_days: int = Field(
        90,
        ge=1,
        description="Age from which feedback is deleted, once its answer takes no more.",
    )
    event_retention_days: int = Field(
        400, ge=1, description="Age from which events are deleted; the newest 1,000 stay whatever their age."
    )
    event_retention_rows: int = Field(
        1_000_000, ge=1000, description="Most events that are kept, of all models together; the oldest go first."
    )
