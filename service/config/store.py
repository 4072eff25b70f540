"""Where archives come from."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class ModelStoreSettings(BaseModel):
    """Where archives come from."""

    model_store: Path = Field(Path("model_store"), description="Folder of the archives and their manifest.json.")
    trusted_keys_dir: Path | None = Field(
        None,
        description="Folder of trusted public keys (*.pub). Each load needs a manifest that one of them has signed. "
        "Unset: no signature is needed.",
    )
    verified_archives_dir: Path | None = Field(
        None,
        description="Backends `grpc` and `rest`: folder that only the gateway writes and TorchServe uses as its "
        "model store. The gateway copies each archive into it after checking it. Unset: TorchServe reads "
        "its own store. The gateway then compares the contract of each loaded version, but not the archive's bytes.",
    )
    default_model: str | None = Field(
        None, description="Model of requests that name none. Unset is the only model in the store."
    )
    model_store_policy: Literal["latest", "all", "specific"] = Field(
        "latest",
        description="What the gateway registers by itself: the newest release of each model, every archive, or "
        "nothing.",
    )
    model_store_poll_seconds: float = Field(
        0,
        ge=0,
        description="Pause between two looks for new archives. 0 looks only at start.",
    )
    revocation_poll_seconds: float = Field(
        60,
        gt=0,
        description="Pause between two checks whether loaded versions are revoked.",
    )
    workers_per_version: int = Field(2, ge=1, le=256, description="Worker processes of each loaded version.")
    max_workers_per_version: int = Field(
        32,
        ge=1,
        le=256,
        description="Largest number of workers that an operator or an archive may ask for. Versions that had more "
        "get this many.",
    )
