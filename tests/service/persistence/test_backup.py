"""The state in one file and back: nothing that was acknowledged is lost, and nothing is overwritten unasked."""

import asyncio
import contextlib
import io
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from service.config.settings import Settings
from service.persistence.archives.counters import Accepted, Counters
from service.persistence.database import Database
from service.persistence.upkeep import commands
from tests.gateway import Rig, running_gateway
from tests.postgres import programs, running_postgres
from tests.service.two_gateways import VERSIONS, put, traffic

pytestmark = pytest.mark.anyio


async def state(verb: str, *arguments: str, url: str) -> tuple[int, str]:
    """Do what `torchgate state ...` does; return its exit status and what it said."""
    *options, file = arguments
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        settings = Settings(database_url=url)
        code = await asyncio.to_thread(commands.run, settings, verb, Path(file), is_forced="--force" in options)
    return code, said.getvalue()


async def command(verb: str, *arguments: str, url: str) -> tuple[int, str]:
    """Run `torchgate state ...` as a user does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service", "state", verb, *arguments),
        env={**os.environ, "TORCHGATE_DATABASE_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def label(rig: Rig, name: str) -> None:
    path = f"/models/digits/labels/{name}"
    answer = await rig.client.put(path, json={"version": "1.0"}, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text


async def labels(rig: Rig) -> set[str]:
    return set((await traffic(rig))["labels"])


def scalar(path: Path, query: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchone()[0]


def named(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


async def test_a_backup_under_changes_has_all_that_was_acknowledged_and_is_restored(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'state.db'}", tmp_path / "backup"
    done: list[str] = []
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all", database_url=url) as rig:
        await rig.until_every_version_is_ready()
        await put(rig, {"1.0": 60, "1.1": 40})

        async def change_on() -> None:
            for number in range(10_000):
                await label(rig, f"l{number}")
                done.append(f"l{number}")

        changing = asyncio.create_task(change_on())
        while len(done) < 20:
            await asyncio.sleep(0.01)
        before = set(done)
        code, said = await command("backup", str(file), url=url)
        num_since = len(done) - len(before)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        assert (code, "holds 1 model and" in said) == (0, True), said
        assert num_since > 0  # changes went on meanwhile
        assert file.stat().st_mode & 0o777 == 0o600
        assert named(tmp_path, ".backup.*") == []
        last = scalar(file, "SELECT max(json_extract(after, '$.revision')) FROM torchgate_events")
        assert last == scalar(file, "SELECT revision FROM torchgate_models")

        # A file that is there is left alone, and so is a database that is in use.
        code, said = await state("backup", str(file), url=url)
        assert (code, "is there already" in said) == (1, True), said
        code, said = await command("restore", str(file), url=url)
        assert (code, "Stop all gateways" in said) == (1, True), said
        kept = await labels(rig)
        assert before <= kept
        later = f"sqlite:///{tmp_path / 'elsewhere.db'}"
        code, said = await command("restore", str(file), url=later)
        assert code == 0, said
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all", database_url=later) as rig:
        assert before <= await labels(rig)
        assert (await traffic(rig))["weights"] == {"1.0": 60, "1.1": 40}

    code, said = await state("restore", str(file), url=url)
    assert code == 0, said
    (former,) = named(tmp_path, "state.db.before-*")
    assert str(former) in said
    assert former.stat().st_mode & 0o777 == 0o600
    for path, expected in ((tmp_path / "state.db", file), (former, None)):
        query = "SELECT document FROM torchgate_models"
        assert (scalar(path, query) == scalar(file, query)) == (expected is not None)


async def test_force_changes_the_state_under_a_running_gateway(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'state.db'}", tmp_path / "backup"
    async with running_gateway(tmp_path, database_url=url) as rig:
        await label(rig, "old")
        assert (await state("backup", str(file), url=url))[0] == 0
        await label(rig, "new")
        code, said = await state("restore", "--force", str(file), url=url)
        assert code == 0, said
        async with asyncio.timeout(10):
            while await labels(rig) != {"old"}:
                await asyncio.sleep(0.01)
        await label(rig, "next")
        assert await labels(rig) == {"old", "next"}


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("revision", ["0002", "0003"])
async def test_a_restore_does_not_make_an_old_manifest_the_newest_again(
    tmp_path: Path, revision: str, is_forced: bool
) -> None:
    """The backup is from before a signature was accepted; maybe from before there were counters at all."""
    database, file = tmp_path / "state.db", tmp_path / "backup"
    url = f"sqlite:///{database}"
    async with running_gateway(tmp_path, database_url=url) as rig:
        await label(rig, "old")
    accept(url, {"a": (5, "five"), "b": (7, "seven")})
    assert (await state("backup", str(file), url=url))[0] == 0
    if revision == "0002":
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("DROP TABLE torchgate_manifest_counters")
            connection.execute("UPDATE torchgate_revision SET version_num = '0002'")
    accept(url, {"a": (6, "six"), "c": (1, "one")})
    code, said = await state("restore", *(["--force"] if is_forced else []), str(file), url=url)
    assert code == 0, said
    with closing(sqlite3.connect(database)) as connection:
        kept = connection.execute("SELECT key_id, counter, sha256 FROM torchgate_manifest_counters").fetchall()
    assert sorted(kept) == [("a", 6, "six"), ("b", 7, "seven"), ("c", 1, "one")]
    assert named(tmp_path, ".*") == []
    async with running_gateway(tmp_path, database_url=url) as rig:
        assert await labels(rig) == {"old"}


def accept(url: str, counters: dict[str, tuple[int, str]]) -> None:
    """Note counters of signatures as a gateway does that reads the manifests."""
    database = Database(url)
    database.open()
    for key_id, (counter, sha256) in counters.items():
        Counters(database).accept(key_id, Accepted(counter, sha256))
    database.close()


async def test_what_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    database, file = tmp_path / "state.db", tmp_path / "backup"
    url = f"sqlite:///{database}"
    code, said = await state("backup", str(file), url=url)
    assert (code, "there is no state yet" in said) == (1, True), said
    async with running_gateway(tmp_path, database_url=url) as rig:
        await label(rig, "old")
        assert (await state("backup", str(file), url=url))[0] == 0
    whole = file.read_bytes()
    before = database.read_bytes()
    for wrong, fault in (
        (whole[:5000] + b"\xff" * (len(whole) - 5000), "is damaged"),
        (b"no database at all", "is damaged"),
        (b"", "holds no state"),
    ):
        file.write_bytes(wrong)
        code, said = await state("restore", str(file), url=url)
        assert (code, fault in said) == (1, True), said
        assert database.read_bytes() == before
    file.write_bytes(whole)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE torchgate_revision SET version_num = '0099'")
    code, said = await state("restore", str(file), url=url)
    assert (code, "to revision 0099" in said) == (1, True), said
    file.write_bytes(whole)

    database.write_bytes(before[:5000] + b"\xff" * (len(before) - 5000))
    code, said = await state("restore", str(file), url=url)
    assert (code, "--force" in said) == (1, True), said
    code, said = await state("restore", "--force", str(file), url=url)
    assert code == 0, said
    (former,) = named(tmp_path, "state.db.before-*")
    assert former.read_bytes().endswith(b"\xff" * 100)
    async with running_gateway(tmp_path, database_url=url) as rig:
        assert await labels(rig) == {"old"}


async def test_the_commands_for_postgresql_work_as_printed(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with running_postgres() as url:
        async with running_gateway(tmp_path, database_url=url) as rig:
            await label(rig, "old")
            secret = url.replace("postgres@", "postgres:hidden@")
            secret += f"{'&' if '?' in secret else '?'}password=hidden&application_name=it's%20me"
            run_printed(await state("backup", str(file), url=secret))
            await label(rig, "new")
            code, said = await command("rotate-key", url=url)  # which works on the database itself, whichever it is
            assert (code, "a new key" in said) == (0, True), said
        run_printed(await state("restore", str(file), url=url))
        async with running_gateway(tmp_path, database_url=url) as rig:
            assert await labels(rig) == {"old"}


def run_printed(told: tuple[int, str]) -> None:
    """Run the command that was printed, by the programs of the tests' server."""
    code, said = told
    assert code == 2
    assert "hidden" not in said
    assert "***" not in said
    program, *arguments = shlex.split(said.splitlines()[-1])
    done = subprocess.run([programs() / program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
