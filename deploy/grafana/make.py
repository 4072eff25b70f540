"""Writes the dashboards as Grafana reads them: `python -m deploy.grafana.make`, from the top of the checkout."""

import json
from pathlib import Path

from deploy.grafana.backend import BACKEND
from deploy.grafana.batching import BATCHING
from deploy.grafana.form import written
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.quality import QUALITY
from deploy.grafana.versions import VERSIONS_BOARD

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = (OVERVIEW, BATCHING, VERSIONS_BOARD, QUALITY, BACKEND)


def texts() -> dict[str, str]:
    """Return the name and the text of every file."""
    return {
        f"{board.uid}.json": json.dumps(written(board, BOARDS), indent=2, ensure_ascii=False) + "\n" for board in BOARDS
    }


def main() -> None:
    """Write the files."""
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
