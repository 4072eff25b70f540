"""The settings by group, as the help and the reference show them."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from service.config.identity import IdentitySettings
from service.config.model_server import ModelServerSettings
from service.config.network import NetworkSettings
from service.config.settings import Settings
from service.config.state import StateSettings
from service.config.store import ModelStoreSettings

GROUPS: dict[str, type[BaseModel]] = {
    "Network": NetworkSettings,
    "Identity and access": IdentitySettings,
    "Model server and workers": ModelServerSettings,
    "Model store": ModelStoreSettings,
    "State": StateSettings,
}
# Of what Settings itself declares; the others are about batching and limits.
MONITORING = ("log_", "slow_", "tracing", "prediction_log", "drift", "slo_")


def setting_groups() -> Mapping[str, Sequence[str]]:
    """Return the names of all settings by the titles of their groups."""
    grouped = {title: list(group.model_fields) for title, group in GROUPS.items()}
    own = [name for name in Settings.model_fields if not any(name in names for names in grouped.values())]
    grouped["Batching and limits"] = [name for name in own if not name.startswith(MONITORING)]
    grouped["Monitoring"] = [name for name in own if name.startswith(MONITORING)]
    return grouped
