"""The verb that packs the graphs for TorchServe and puts them into the model store."""

import ast
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from training.archive.contract import build_contract, image_limits, version_of
from training.archive.manifest import (
    Entry,
    locked,
    next_release,
    read_manifest,
    taken_releases,
    write_manifest,
    writing,
)
from training.archive.signatures import signer
from training.artifacts import Run, Variant, sha256, write_json
from training.errors import ArchiveError, SettingError, VersionExistsError
from training.export.export import exported_variants
from training.options.config import ArchiveConfig
from training.options.limits import check_name

RELEASE = re.compile(r"\d{1,9}\.\d{1,9}(\.\d{1,9})?")
ARCHIVER_TIMEOUT_SECONDS = 120
HIDDEN = ".archive-"


def archive(run: Run, model: str, config: ArchiveConfig) -> list[Entry]:
    """Put all variants of the run into the model store under one release, and return their entries.

    Archives are renamed into place whole, the manifest is replaced last; nothing that is there is ever changed.
    Raises VersionExistsError for a release that is taken, RunError if the run was not exported.
    """
    check_archive(model, config)
    signs = signer(config.signing_key_file, config.signature_days)
    store = config.model_store
    with locked(store):
        for abandoned in store.glob(f"{HIDDEN}*"):
            shutil.rmtree(abandoned)
        release = free_release(model, config)
        entries: list[Entry] = []
        with writing(store), _unlisted_removed(store, entries):
            with tempfile.TemporaryDirectory(prefix=HIDDEN, dir=store) as hidden:
                packed = {
                    variant: _pack(run, variant, model=model, release=release, config=config, folder=Path(hidden))
                    for variant in exported_variants(run)
                }
                entries.extend(_place(made, store, model, release, variant) for variant, made in packed.items())
            write_manifest(store, [*read_manifest(store), *entries], signs)
    write_json(run.archives, {"model_store": str(store.resolve()), "archives": [vars(entry) for entry in entries]})
    for entry in entries:
        print(f"{store / entry.file} ({entry.size_bytes / 1e6:.2f} MB)")
    return entries


def check_archive(model: str, config: ArchiveConfig) -> None:
    """Raise a TrainingError for what would keep the archives from being made, before hours are spent on training."""
    check_name(model)
    image_limits(config)
    if config.version is not None and not RELEASE.fullmatch(config.version):
        raise SettingError(f"--version is {config.version!r}; allowed are two or three numbers, such as 2.0 or 2.0.1")
    if config.handler.suffix != ".py" or not config.handler.is_file():
        raise SettingError(f"--handler: {config.handler} is not a Python file")
    signer(config.signing_key_file, config.signature_days)
    handler_files(config.handler)
    if config.model_store.exists() and not config.model_store.is_dir():
        raise SettingError(f"--model-store: {config.model_store} is not a folder")
    free_release(model, config)


def free_release(model: str, config: ArchiveConfig) -> str:
    """Return the release that was asked for, else the next one; raises VersionExistsError if it is taken."""
    taken = taken_releases(config.model_store, model)
    if config.version is None:
        return next_release(taken)
    if config.version in taken:
        raise VersionExistsError(
            f"{model} {config.version} is in {config.model_store} already, and archives are immutable: "
            "give another --version, or none for the next one that is free"
        )
    return config.version


def handler_files(handler: Path) -> list[Path]:
    """Return the handler, then the modules beside it that it needs: those it or one of them imports by a bare name."""
    files = [handler]
    for file in files:  # grows while it is gone through
        try:
            tree = ast.parse(file.read_bytes())
        except SyntaxError as error:
            raise SettingError(f"--handler: {file} is not Python: {error}") from error
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found = (handler.parent / f"{name}.py" for name in names)
            files += [each for each in found if each.is_file() and each not in files]
    return files


@contextmanager
def _unlisted_removed(store: Path, entries: Sequence[Entry]) -> Iterator[None]:
    """If what runs inside fails, remove the archives that it placed and did not list: they would take up a release."""
    try:
        yield
    except BaseException:
        listed = {entry.file for entry in read_manifest(store)}
        for entry in entries:
            if entry.file not in listed:
                (store / entry.file).unlink(missing_ok=True)
        raise


def _pack(run: Run, variant: Variant, *, model: str, release: str, config: ArchiveConfig, folder: Path) -> Path:
    """Run torch-model-archiver in a folder of its own and return the archive that it made there."""
    contract = build_contract(run, variant, model=model, release=release, archive=config)
    handler = config.handler
    # Everything lies in one folder under plain names: the archiver reads commas and wildcards in paths.
    staging, outcome, temporary = (folder / variant / part for part in ("staging", "outcome", "temporary"))
    for each in (staging, outcome, temporary):
        each.mkdir(parents=True)
    (staging / "contract.json").write_text(json.dumps(contract, allow_nan=False, indent=1))
    graph = run.graph(variant)
    shutil.copy(graph, staging)
    modules = [file.name for file in handler_files(handler)]
    for name in modules:
        shutil.copy(handler.parent / name, staging / name)
    # -P: what lies in the staging folder must not be imported by the tool.
    command = [sys.executable, "-P", "-m", "model_archiver.model_packaging"]
    command += ["--model-name", model, "--version", version_of(release, variant), "--runtime", "python"]
    command += ["--serialized-file", graph.name, "--handler", handler.name]
    command += ["--extra-files", ",".join(["contract.json", *modules[1:]])]
    command += ["--export-path", str(outcome.absolute())]
    # It stages in TMPDIR/<model name> and wipes that first: two of them must not share the folder.
    environment = {"TMPDIR": str(temporary.absolute())}
    try:
        subprocess.run(
            command,
            cwd=staging,
            env=environment,
            check=True,
            timeout=ARCHIVER_TIMEOUT_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        if shutil.disk_usage(folder).free < graph.stat().st_size:  # whatever the archiver makes of it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise ArchiveError(f"torch-model-archiver failed for {model} {release}: {error.stdout.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise ArchiveError(f"torch-model-archiver took longer than {ARCHIVER_TIMEOUT_SECONDS} s") from error
    return outcome / f"{model}.mar"


def _place(packed: Path, store: Path, model: str, release: str, variant: Variant) -> Entry:
    version = version_of(release, variant)
    final = store / f"{model}-{version}.mar"
    packed.chmod(0o644)
    entry = Entry(
        file=final.name,
        model=model,
        version=version,
        release=release,
        variant=variant,
        sha256=sha256(packed),
        size_bytes=packed.stat().st_size,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    packed.replace(final)
    return entry
