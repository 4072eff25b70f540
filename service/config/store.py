"""Where archives come from."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class ModelStoreSettings(BaseModel):
    """Where archives come from."""

    model_store: Path = Field(Path("model_store"), description="Folder of the archives and their manifest.json.")
    trusted_keys_dir: Path | None = Field(
        None,
        description="Folder of the public keys (*.pub) of which one must have signed the manifest; read at every load. "
        "Unset: no signature is asked for.",
    )
    verified_archives_dir: Path | None = Field(
        None,
        description="Backends grpc and rest: folder that only the gateway writes, and that TorchServe has as its model "
        "store; each load copies a checked archive into it. Unset: TorchServe reads its own "
        "store, and nobody compares its archives with the manifest.",
    )
    default_model: str | None = Field(
        None, description="Model of a request that names none; unset means the only one in the store."
    )
    model_store_policy: Literal["latest", "all", "specific"] = Field(
        "latest",
        description="What is registered by itself: the newest release of each model, every archive, or nothing.",
    )
    model_store_poll_seconds: float = Field(
        0,
        ge=0,
        description="Pause between two looks for new archives; 0 looks only when the gateway starts.",
    )
    revocation_poll_seconds: float = Field(
        60,
        gt=0,
        description="Pause between two looks whether the manifest still vouches for what is loaded.",
    )
    workers_per_version: int = Field(2, ge=1, le=256, description="Worker processes for each loaded version.")
    max_workers_per_version: int = Field(
        32,
        ge=1,
        le=256,
        description="Most workers that an operator or an archive may ask for. A version that was given more before "
        "gets this many.",
    )
