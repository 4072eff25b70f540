"""Writes what is made from the code: pages of docs/, and parts of the Python client.

`python -m deploy.reference.make`, from the top of the checkout.
"""

from pathlib import Path

from deploy.reference.async_client import async_client
from deploy.reference.cli import cli_page
from deploy.reference.client_codes import client_codes
from deploy.reference.decisions import decisions_page
from deploy.reference.errors import errors_page
from deploy.reference.http_api import http_api_page
from deploy.reference.metrics import metrics_page
from deploy.reference.settings import settings_page
from deploy.reference.training import training_page

ROOT = Path(__file__).parents[2]


def texts() -> dict[str, str]:
    """Return the path and the text of every file."""
    return {
        "docs/reference/cli.md": cli_page(),
        "docs/reference/training.md": training_page(),
        "docs/reference/settings.md": settings_page(),
        "docs/reference/http-api.md": http_api_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/decisions/index.md": decisions_page(),
        "client/torchgate_client/codes.py": client_codes(),
        "client/torchgate_client/async_client.py": async_client(),
    }


def main() -> None:
    """Write the files."""
    for path, text in texts().items():
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
