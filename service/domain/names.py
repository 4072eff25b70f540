"""Names of models and versions: they stand in headers, URLs, file names, log lines and database rows."""

import re

MOST_CHARACTERS = 100
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_CHARACTERS - 1}}}")
SHOWN_CHARACTERS = 120


def name_fault(name: str) -> str:
    """Return what is wrong with a name, "" if nothing is."""
    if NAME.fullmatch(name):
        return ""
    shown = repr(name[:SHOWN_CHARACTERS]) + ("..." if len(name) > SHOWN_CHARACTERS else "")
    return (
        f"{shown} is not a name: allowed are letters, digits, '.', '_' and '-', at most {MOST_CHARACTERS}, "
        "the first a letter or a digit"
    )
