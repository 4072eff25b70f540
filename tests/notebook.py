"""Runs the cells of a notebook in IPython, the shell of Jupyter's kernel, and prints what each one shows as JSON.

`python tests/notebook.py FILE`: a program, because the shell changes its process. A cell that fails ends it.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


def outputs(notebook: Path) -> list[dict[str, str]]:
    """Return for each code cell its source, what it printed, and its last value by MIME type."""
    os.chdir(notebook.parent)  # as Jupyter does
    shell = InteractiveShell()  # type: ignore[no-untyped-call]
    assert shell.display_formatter is not None
    shown = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            done = shell.run_cell(source)  # type: ignore[no-untyped-call]
        done.raise_error()
        value = {}
        if done.result is not None:
            value, _ = shell.display_formatter.format(done.result)  # type: ignore[no-untyped-call]
        shown.append({"source": source, "printed": printed.getvalue(), **value})
    return shown


if __name__ == "__main__":
    json.dump(outputs(Path(sys.argv[1]).resolve()), sys.stdout)
