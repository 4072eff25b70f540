"""The rows that the README must have, made from the code; `python -m tests.documented` prints them to paste."""

import re
from collections.abc import Iterator

from service.app import create_app
from service.config.environment import env_name
from service.config.settings import Settings
from service.errors import gateway as errors
from service.http.request_middleware import RequestMiddleware
from service.telemetry.metrics import Metrics
from tests.fake_backend import FakeBackend, FakeControl
from tests.torchserve_process import ROOT


def setting_rows() -> list[str]:
    """One row per setting: variable, default, meaning."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{env_name(name)}` | {default} | {field.description} |")
    return rows


def route_rows() -> list[str]:
    """One row per route: method, path, what it does."""
    settings = Settings.model_construct()  # the routes do not depend on the environment
    app = create_app(settings, FakeBackend(), FakeControl({}))
    assert isinstance(app, RequestMiddleware)
    return [
        f"| `{method.upper()}` | `{path}` | {operation['description'].splitlines()[0]} |"
        for path, operations in app._app.openapi()["paths"].items()  # type: ignore[attr-defined]
        for method, operation in operations.items()
    ]


def error_rows() -> list[str]:
    """One row per error of the tree: status, code, when."""
    rows = [
        f"| {error.status} | `{error.code}` | {(error.__doc__ or '').strip().splitlines()[0]} |"
        for error in _with_code(errors.GatewayError)
    ]
    return sorted(rows)


def _with_code(kind: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _with_code(each)


def image_codes() -> set[str]:
    """The codes with which one image can fail."""
    handler = "".join(path.read_text() for path in sorted((ROOT / "handlers").glob("*.py")))
    body = (ROOT / "service" / "http" / "images" / "json_document.py").read_text()
    return set(re.findall(r'(?:problem|Refused)\("(\w+)"', handler)) | set(re.findall(r'ItemError\("(\w+)"', body))


def metric_rows() -> list[str]:
    """One row per metric of our own: name, type, labels, meaning."""
    rows = []
    for instrument in sorted(Metrics().instruments(), key=lambda each: each._name):
        (family,) = instrument.describe()
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ", ".join(f"`{label}`" for label in instrument._labelnames)
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |")
    return rows


if __name__ == "__main__":
    for table in (setting_rows(), route_rows(), error_rows(), sorted(image_codes()), metric_rows()):
        print("\n".join(table), end="\n\n")
