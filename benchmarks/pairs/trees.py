"""The checkout that this one is held against: a folder, or a revision of this repository."""

import io
import subprocess
import tarfile
from pathlib import Path

from benchmarks.environment.folders import ROOT, WORK


def checkout(name: str) -> tuple[Path, str]:
    """Return the folder of a checkout and what it is called; a revision is unpacked into the work folder once.

    Raises SystemExit for what is neither a checkout's folder nor a revision.
    """
    folder = Path(name).expanduser()
    if (folder / "service").is_dir():
        return folder.resolve(), describe(folder.resolve())
    found = _git(ROOT, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not found:
        raise SystemExit(f"--against {name}: neither a checkout's folder nor a revision of this repository")
    folder = WORK / "trees" / found[:12]
    if not (folder / "service").is_dir():
        packed = subprocess.run(["git", "archive", found], cwd=ROOT, check=True, capture_output=True).stdout
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder, found[:12]


def describe(folder: Path) -> str:
    """Return a folder's commit, and whether files differ from it."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    return f"{commit or folder.name}{' with changes' if _git(folder, 'status', '--porcelain') else ''}"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
