"""`make bench-training`: measure the tables, keep each, and show all that there are."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from benchmarks.environment.folders import PUBLISHED, WORK
from benchmarks.environment.machine import machine
from benchmarks.training.forms import network_forms
from benchmarks.training.modes import MODES, TABLES, TableName
from benchmarks.training.operators import chain, convolution, copies, pairwise
from benchmarks.training.strategies import strategies
from benchmarks.training.table import Table, read_table, write_table

PACKAGES = ("torch", "numpy")


def run_training(name: str, only: TableName | Literal[""], *, publish: bool, folder: Path | None = None) -> None:
    """Measure all tables, or the one that `only` names, into the work folder; publish what is there if asked to."""
    mode = MODES[name]
    folder = folder or WORK / "training" / name
    measures: dict[TableName, Callable[[], Table]] = {
        "pairwise": lambda: pairwise(mode.seconds),
        "chain": lambda: chain(mode.seconds),
        "convolution": lambda: convolution(mode.seconds),
        "copies": lambda: copies(mode.seconds),
        "forms": lambda: network_forms(mode.seconds, mode.batch_sizes),
        "strategies": lambda: strategies(folder / "runs", mode.preset, mode.num_epochs),
    }
    wanted = (only,) if only else TABLES
    for number, each in enumerate(wanted, 1):
        print(f"{number}/{len(wanted)} {each}", flush=True)
        write_table(folder / "tables", measures[each]())
    where = machine(PACKAGES)
    found = published_tables(where, name) if publish else {}
    paths = (folder / "tables" / f"{each}.json" for each in TABLES)
    found |= {path.stem: read_table(path.read_text()) for path in paths if path.exists()}
    tables = [found[each] for each in TABLES if each in found]
    head = f"# Training benchmarks\n\n{where}. Mode {name}."
    text = "\n\n".join([head, *(table.markdown() for table in tables)]) + "\n"
    (folder / "training.md").write_text(text)
    document = {"machine": where, "mode": name, "tables": [asdict(table) for table in tables]}
    (folder / "training.json").write_text(json.dumps(document, indent=1, allow_nan=False))
    print(f"\n{text}\ntables and JSON: {folder}")
    if publish:
        PUBLISHED.mkdir(exist_ok=True)
        for file in ("training.md", "training.json"):
            shutil.copy(folder / file, PUBLISHED / file)
        print(f"published: {PUBLISHED}")


def published_tables(where: str, mode: str) -> dict[str, Table]:
    """Return the tables that were published of this machine and mode, by name: one that is measured again joins them.

    Those of another machine are not to stand beside this one's.
    """
    path = PUBLISHED / "training.json"
    if not path.is_file():
        return {}
    document = json.loads(path.read_text())
    if (document["machine"], document["mode"]) != (where, mode):
        return {}
    return {each["name"]: read_table(json.dumps(each)) for each in document["tables"]}
