"""Writes the generated pages of docs/: `python -m deploy.reference.make`, from the top of the checkout."""

from pathlib import Path

from deploy.reference.cli import cli_page
from deploy.reference.decisions import decisions_page
from deploy.reference.errors import errors_page
from deploy.reference.http_api import http_api_page
from deploy.reference.metrics import metrics_page
from deploy.reference.settings import settings_page

FOLDER = Path("docs")


def texts() -> dict[str, str]:
    """Return the name and the text of every generated page."""
    return {
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
        "reference/http-api.md": http_api_page(),
        "reference/errors.md": errors_page(),
        "reference/metrics.md": metrics_page(),
        "decisions/index.md": decisions_page(),
    }


def main() -> None:
    """Write the pages."""
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
