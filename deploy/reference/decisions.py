"""The list of the decision records, by their titles."""

from pathlib import Path

from deploy.reference.form import page

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
INDEX = "index.md"
INTRODUCTION = """\
Each record says what was decided, why, what was measured for it, and what was tried and dropped. Read one before you \
change what it is about."""


def decisions_page() -> str:
    """Return the page."""
    records = [path for path in FOLDER.glob("*.md") if path.name != INDEX]
    titles = sorted((path.read_text().partition("\n")[0].removeprefix("# "), path.name) for path in records)
    return page("Decisions", INTRODUCTION, "\n".join(f"- [{title}]({name})" for title, name in titles))
