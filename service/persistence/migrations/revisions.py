"""Which revisions of the tables there are, and which one a database has."""

from collections.abc import Callable, Collection
from typing import Any

# All that this release can read, oldest first. A database of an older one is upgraded to the last.
REVISIONS = ("0001", "0002", "0003")
BASELINE, CURRENT = REVISIONS[0], REVISIONS[-1]


class RevisionUnknown(ValueError):
    """The database was made by a newer release."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"a newer release of torchgate has upgraded it to revision {found}, and this one reads up to {CURRENT}. "
            "Use the newer release, or restore a backup from before the upgrade (torchgate state restore)"
        )


def found_revision(tables: Collection[str], scalar: Callable[[str], Any]) -> str | None:
    """Return the revision of a database by the names of its tables and a query; None if it has no state.

    Raises:
        RevisionUnknown: this release cannot read it.
    """
    if "torchgate_revision" in tables:
        found = str(scalar("SELECT version_num FROM torchgate_revision"))
    elif "torchgate_schema" in tables:  # before there were revisions
        version = scalar("SELECT max(version) FROM torchgate_schema")
        if version is None:
            return None
        found = BASELINE if version == 1 else str(version)
    else:
        return None
    if found not in REVISIONS:
        raise RevisionUnknown(found)
    return found
