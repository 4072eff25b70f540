"""Who may do what."""

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr, field_validator

from service.config.clients import LEAST_CHARACTERS


class IdentitySettings(BaseModel):
    """Who may do what."""

    admin_token: SecretStr | None = Field(
        None,
        min_length=LEAST_CHARACTERS,
        description="Token for changes, sent as `Authorization: Bearer`. Unset: `serve` creates one in a file that "
        "only its user can read, and the command line finds it there.",
    )
    admin_token_file: Path | None = Field(None, description="File with the value of TORCHGATE_ADMIN_TOKEN.")
    token_dir: Path | None = Field(
        None,
        description="Folder for the token that `serve` creates, one file per port. Unset is the user's own folder.",
    )
    api_keys: SecretStr | None = Field(
        None,
        description="API keys of at least 8 characters, separated by commas. Predictions must send one as "
        "`X-API-Key`. Unset: predictions need no key.",
    )
    api_keys_file: Path | None = Field(None, description="File with the value of TORCHGATE_API_KEYS.")

    clients_file: Path | None = Field(
        None,
        description="TOML file of named clients: keys, scopes, shares and quotas. The gateway reads it again when it "
        "changes.",
    )
    reads_need_key: bool = Field(
        False,
        description="Whether reads (models, traffic, rollouts, events, metrics, the status page's figures) need a "
        "key with the scope `read`, or the admin token.",
    )
    quota_images_per_second: int = Field(
        0,
        ge=0,
        description="Images per second that each client may send, unless the clients file says otherwise: each "
        "client of that file, each key of TORCHGATE_API_KEYS, or each address where there are no keys. 0 "
        "is no quota.",
    )
    quota_burst_images: int = Field(
        0,
        ge=0,
        description="Images that may come at once after a pause. 0 is one second's quota or TORCHGATE_MAX_IMAGES, "
        "whichever is larger.",
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of `api_keys`."""
        return () if self.api_keys is None else _split(self.api_keys.get_secret_value())

    @field_validator("api_keys")
    @classmethod
    def _require_keys(cls, given: SecretStr | None) -> SecretStr | None:
        keys = () if given is None else _split(given.get_secret_value())
        if given is not None and not keys:
            raise ValueError("it is set, but holds no key; unset it to ask for none")
        for number, key in enumerate(keys, 1):
            if len(key) < LEAST_CHARACTERS:
                raise ValueError(f"key {number} has {len(key)} characters, at least {LEAST_CHARACTERS} are needed")
        return given


def _split(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(",") if key.strip())
