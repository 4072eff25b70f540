"""Runs a command with the settings that `make tune` has found: python deploy/tuned_settings.py FILE COMMAND...

The file lies in the model store, which others may write. So it is read, never evaluated: each line is a name of the
list below and a value that this name may have. Any other line stops the start: whoever wrote it was not `make tune`. A
setting of the environment wins over the file. Without the file, the command runs as it is.
"""

import os
import re
import sys
from pathlib import Path

MOST_BYTES = 4096
NUMBER = re.compile(r"[1-9][0-9]{0,4}")
ALLOWED = {
    "OMP_NUM_THREADS": NUMBER,
    "TORCHGATE_GRAPH_FORM": re.compile(r"portable|frozen|frozen-channels-last|optimized|optimized-channels-last|fused"),
    "TORCHGATE_MAX_BATCH_SIZE": NUMBER,
    "TORCHGATE_THREADS_PER_WORKER": NUMBER,
    "TORCHGATE_WORKERS_PER_VERSION": NUMBER,
}


def tuned(path: Path) -> dict[str, str]:
    """Return the file's settings; raises ValueError that names the first line that is none."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES} bytes")
    settings = {}
    for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition("=")
        shown = f"{path}, line {number}: {line[:80]!r}"
        if name not in ALLOWED:
            raise ValueError(f"{shown} sets none of {', '.join(ALLOWED)}")
        if not ALLOWED[name].fullmatch(value):
            raise ValueError(f"{shown}: {name} cannot have this value")
        settings[name] = value
    return settings


def main(file: str, *command: str) -> None:
    """Become the command; a file that is not as `make tune` writes it ends this with status 2."""
    path = Path(file)
    try:
        settings = tuned(path) if path.exists() else {}
    except (OSError, ValueError) as error:
        print(f"make serve: {error}. Delete the file, or run `make tune` again.", file=sys.stderr)
        sys.exit(2)
    if settings:
        print(f"settings of {path}: {' '.join(f'{name}={value}' for name, value in settings.items())}", flush=True)
    os.execvpe(command[0], command, {**settings, **os.environ})  # noqa: S606 - no shell is what this is for


if __name__ == "__main__":
    main(*sys.argv[1:])
