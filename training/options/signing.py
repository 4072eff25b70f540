"""What `python -m training sign` can be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SignConfig:
    """Sign the model store's manifest: anew, before the signature expires, or with another key."""

    model_store: Path = Path("model_store")
    """Folder of the archives; its default is the environment's TORCHGATE_MODEL_STORE, if that is set."""
    signing_key_file: Path | None = None
    """Private key; its default is the environment's TORCHGATE_SIGNING_KEY_FILE."""
    signature_days: float = 365
    """Days until the signature expires. With an expired signature, gateways load nothing."""
    revoke: tuple[str, ...] = ()
    """Archives, by their file names, that the manifest shall no longer list: gateways never load them again."""
