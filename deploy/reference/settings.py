"""The page of settings: every option of the gateway, by group."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from deploy.reference.form import page, table
from service.config.environment import env_name
from service.config.places.groups import setting_groups
from service.config.settings import Settings

INTRODUCTION = """\
`serve`, `check` and `settings` read each setting from three places, once, at the start. The first that has it wins:

| place | for example |
| --- | --- |
| a flag | `torchgate serve --max-images 64` |
| an environment variable | `TORCHGATE_MAX_IMAGES=64` |
| the file `torchgate.toml` in the folder where you start the command | `max_images = 64` |

The flag and the key follow from the variable's name. `--config FILE` or `TORCHGATE_CONFIG` names another file, which \
then must exist. An empty variable counts as unset; an empty flag asks for the default. \
[Choose a place](../how-to/serve/tuning.md#choose-where-settings-come-from) has the rules of the file.

A wrong value stops the gateway before it listens; the message names the flag, variable or key, the value and what is \
allowed. A misspelt name stops it, too, with a suggestion.

```sh
torchgate check       # would the gateway start, and is the machine fit for it? what to mend
torchgate settings    # every setting with its value, where that comes from, and its default
```

Secrets (`TORCHGATE_ADMIN_TOKEN`, `TORCHGATE_API_KEYS`, `TORCHGATE_DATABASE_URL`) have \
[no flag](../decisions/places-of-settings.md): other users can see a command line. They can come from files: set \
`TORCHGATE_ADMIN_TOKEN_FILE` or `--admin-token-file` instead of `TORCHGATE_ADMIN_TOKEN`, and so on.

A second gateway and TorchServe on one machine need six ports of their own: `TORCHGATE_PORT` and TorchServe's five."""
LAUNCHER = """\
## TorchServe's launcher

`deploy/torchserve.sh` starts TorchServe. It reads variables only, no flags and no `torchgate.toml`: \
`TORCHGATE_MODEL_STORE`, the three ports and the socket above, and:

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

`make` reads these variables, here with their defaults: `BACKEND`, the backend of `make serve` (`TORCHGATE_BACKEND`, \
or `grpc` if that is unset), `PYTHON` (`python3`), `VENV` (`.venv`), `TORCHGATE_MODEL_STORE` and `TORCH_INDEX_URL`. \
The last is PyTorch's index of CPU wheels. It is used only where it answers within 3 s; \
an empty value means no index."""


def settings_page() -> str:
    """Return the page."""
    return page("Settings", INTRODUCTION, *(_section(*each) for each in setting_groups().items()), LAUNCHER)


def _section(title: str, names: Sequence[str]) -> str:
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
