"""Who may do what."""

from pydantic import BaseModel, Field, SecretStr


class IdentitySettings(BaseModel):
    """Who may do what."""

    admin_token: SecretStr | None = Field(
        None,
        min_length=8,
        description="What calls that change something must send as `Authorization: Bearer`; unset refuses them, "
        "unless the gateway listens on loopback alone.",
    )
    api_keys: SecretStr | None = Field(
        None,
        min_length=8,
        description="Keys, separated by commas, one of which predictions must send as `X-API-Key`; unset asks for "
        "none.",
    )
