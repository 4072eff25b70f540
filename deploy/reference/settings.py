"""The page of settings: every option of the gateway, by group."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deploy.reference.form import page, table
from service.config.environment import env_name
from service.config.identity import IdentitySettings
from service.config.model_server import ModelServerSettings
from service.config.network import NetworkSettings
from service.config.settings import Settings
from service.config.state import StateSettings
from service.config.store import ModelStoreSettings

INTRODUCTION = """\
The gateway reads its settings from environment variables, once, when it starts. A wrong value stops it before it \
listens; the message names the variable, the value and what is allowed. A misspelt `TORCHGATE_` name stops it, too, \
with a suggestion.

```sh
torchgate check       # are the settings, the state's database and the port usable?
torchgate settings    # every setting with its default and its present value
```

Secrets can come from files: set `TORCHGATE_ADMIN_TOKEN_FILE` instead of `TORCHGATE_ADMIN_TOKEN`, and so on. A second \
gateway and TorchServe on one machine need six ports of their own: `TORCHGATE_PORT` and TorchServe's five."""
GROUPS: dict[str, type[BaseModel]] = {
    "Network": NetworkSettings,
    "Identity and access": IdentitySettings,
    "Model server and workers": ModelServerSettings,
    "Model store": ModelStoreSettings,
    "State": StateSettings,
}
# Of what Settings itself declares; the others are about batching and limits.
MONITORING = ("log_", "slow_", "tracing", "prediction_log", "drift", "slo_")
LAUNCHER = """\
## TorchServe's launcher

`deploy/torchserve.sh` starts TorchServe. It reads `TORCHGATE_MODEL_STORE`, the three ports and the socket above, and:

| variable | default | meaning |
| --- | --- | --- |
| `TORCHGATE_TORCHSERVE_BIND` | `127.0.0.1` | Address of TorchServe's ports. Change it only inside a private network: \
TorchServe's APIs ask for no credentials. |
| `TORCHGATE_TORCHSERVE_METRICS_PORT` | `8082` | Port of TorchServe's own metrics. |
| `TORCHGATE_TORCHSERVE_GRPC_MANAGEMENT_PORT` | `7071` | Port of its management API over gRPC, always on loopback. |
| `OMP_NUM_THREADS` | `1` | Threads of each worker. |
| `TORCHGATE_GRAPH_FORM` |  | Form of every graph on this machine: `portable`, `frozen`, `frozen-channels-last`, \
`optimized`, `optimized-channels-last` or `fused`. Unset: what each contract says. Embedded workers read it, too. |

## The Makefile

`make` reads `BACKEND` (`TORCHGATE_BACKEND`, else `grpc`: what `make serve` runs), `PYTHON` (`python3`), `VENV` \
(`.venv`), `TORCHGATE_MODEL_STORE` and `TORCH_INDEX_URL`. The last is PyTorch's index of CPU wheels. It is used only \
where it answers within 3 s; an empty value means no index."""


def settings_page() -> str:
    """Return the page."""
    grouped = {title: list(group.model_fields) for title, group in GROUPS.items()}
    own = [name for name in Settings.model_fields if not any(name in names for names in grouped.values())]
    grouped["Batching and limits"] = [name for name in own if not name.startswith(MONITORING)]
    grouped["Monitoring"] = [name for name in own if name.startswith(MONITORING)]
    return page("Settings", INTRODUCTION, *(_section(*each) for each in grouped.items()), LAUNCHER)


def _section(title: str, names: list[str]) -> str:
    rows = [_row(name, Settings.model_fields[name]) for name in names]
    return f"## {title}\n\n{table(('variable', 'default', 'allowed', 'meaning'), rows)}"


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    default = (
        ""
        if field.default is None
        else f"`{str(field.default).lower() if field.annotation is bool else field.default}`"
    )
    return f"`{env_name(name)}`", default, ", ".join(_allowed(field)), field.description or ""


def _allowed(field: FieldInfo) -> Iterator[str]:
    """Yield what values a setting may have, as far as its type tells."""
    kind = _kind(field.annotation)
    if get_origin(kind) is Literal:
        yield " ".join(f"`{value}`" for value in get_args(kind))
    elif kind is bool:
        yield "`true` `false`"
    bounds: dict[str, Any] = {}
    for each in field.metadata:
        bounds |= {name: getattr(each, name) for name in ("ge", "gt", "le", "lt", "multiple_of") if hasattr(each, name)}
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}
    yield from (f"{words[name]} {value:,}" for name, value in bounds.items() if value is not None)


def _kind(annotation: Any) -> Any:
    """Return a type without the None that says that it may be unset."""
    if get_origin(annotation) is Literal:
        return annotation
    kinds = [each for each in get_args(annotation) if each is not type(None)]
    return kinds[0] if kinds else annotation
