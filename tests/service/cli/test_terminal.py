"""Every verb, and the help of each, as a person sees them: in a terminal of 80 columns."""

import argparse
import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.__main__ import command_parser
from tests.fake_backend import make_profile
from tests.gateway import TOKEN, running_gateway
from tests.terminal import COLUMNS, TORCHGATE, shown_by, terminal

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.0", "fp32"), ("digits", "1.1", "fp32"))
Words = tuple[str, ...]


def paths(parser: argparse.ArgumentParser, path: Words = ()) -> Iterator[tuple[Words, argparse.ArgumentParser]]:
    """Yield every verb and group of verbs, former names too, with its parser."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from paths(each, (*path, name))


PARSERS = dict(paths(command_parser()))
FORMER = {"rollout": "rollouts"}
GROUPS = {path for path in PARSERS if any(len(other) > len(path) and other[: len(path)] == path for other in PARSERS)}
VERBS = PARSERS.keys() - GROUPS


@pytest.mark.parametrize(
    "first", sorted({path[:1] for path in PARSERS}), ids=lambda path: " ".join(path) or "torchgate"
)
def test_the_help_of_each_verb_fits_a_terminal(first: Words) -> None:
    asked = [path for path in PARSERS if path[:1] == first]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda path: shown_by(*path, "--help"), asked)
    for path, (status, shown) in zip(asked, answers, strict=True):
        assert (status, shown.split(" [")[0].split("\n")[0].strip()) == (
            0,
            " ".join(("usage: torchgate", FORMER.get(path[0], path[0]) if path else "", *path[1:])).strip(),
        ), shown
        wide = [line for line in shown.splitlines() if len(line) > COLUMNS]
        assert wide == [], path
        options = [each.option_strings[-1] for each in PARSERS[path]._actions if each.option_strings]
        words = set(re.split(r"[\s,=\[\]]+", shown))
        assert set(options) <= words, path
        undocumented = [each.dest for each in PARSERS[path]._actions if each.option_strings and not each.help]
        assert undocumented == [], path


# Each verb: its arguments, its exit status, and what the terminal shows.
ROWS: dict[Words, tuple[list[str], int, str]] = {
    ("predict",): (["class:1.png", "nowhere.png"], 1, r"class:1\.png +one +100\.00%  digits 1\.0  [\d.]+ ms\n"),
    ("models", "list"): ([], 0, r"digits +1\.1 +ready"),
    ("models", "show"): (["digits"], 0, r"digits +1\.1 +ready"),
    ("models", "scale"): (["digits", "1.1", "2"], 0, r"digits +1\.1 +ready"),
    ("models", "unregister"): (["digits", "1.1"], 0, r"digits 1\.1 is unloaded"),
    ("models", "register"): (["digits", "digits-1.1.mar"], 0, r"digits +1\.1 +ready"),
    ("models", "profile"): (["digits", "1.0", "--batches", "1", "--wait", "0"], 0, r"aten::conv"),
    ("profile",): (["digits", "1.0", "--batches", "1", "--wait", "0"], 0, r"aten::conv"),
    ("drift",): (["digits"], 0, r"digits 1\.0: unknown; 1 of the 200 images"),
    ("traffic", "show"): (["digits"], 0, r"1\.0 +100 %"),
    ("traffic", "set"): (["digits", "1.0=90", "1.1=10"], 0, r"1\.1 +10 %"),
    ("traffic", "shadows"): (["digits"], 0, r"SHADOW +OF"),
    ("traffic", "rollback"): (["digits"], 0, r"1\.0 +100 %"),
    ("labels", "set"): (["digits", "canary", "1.1"], 0, r"1\.1 .*canary"),
    ("labels", "list"): (["digits"], 0, r"canary"),
    ("labels", "delete"): (["digits", "canary"], 0, r"1\.0 +100 %"),
    ("rollouts", "start"): (
        ["digits", "1.1", "--steps", "5,100"],
        0,
        r"rollout 1: 1\.1 instead of 1\.0, running at 5 %",
    ),
    ("rollouts", "pause"): (["digits"], 0, r"paused at 5 %"),
    ("rollouts", "resume"): (["digits", "1"], 0, r"running at 5 %"),
    ("rollouts", "show"): (["digits"], 0, r"GUARD +BAD"),
    ("rollouts", "list"): (["digits"], 0, r"1 +1\.1 +1\.0 +running"),
    ("rollouts", "abort"): (["digits"], 0, r"aborted"),
    ("rollouts", "promote"): (["digits"], 1, r"torchgate: \w+: "),
    ("events",): (["digits"], 0, r"rollout"),
    ("tour",): (["--samples", "nowhere"], 1, r"the images in nowhere cannot be read"),
    ("token",): ([], 0, TOKEN),
    ("settings",): ([], 0, r"TORCHGATE_PORT=0  \(environment"),
    ("check",): ([], 0, r"ok +port +127\.0\.0\.1"),
    ("completion",): (["bash"], 0, r"complete -.*torchgate"),
    ("state", "backup"): (["state.backup"], 0, ""),
    ("state", "restore"): (["state.backup"], 1, r"torchgate: .*gateway"),
    ("state", "rotate-key"): ([], 0, ""),
}
SHOWN_ELSEWHERE = {("serve",), ("train",)}  # below, and in the training's own tests


async def test_every_verb_shows_what_it_is_for(tmp_path: Path) -> None:
    named = {(FORMER.get(path[0], path[0]), *path[1:]) for path in VERBS}
    assert named - ROWS.keys() - SHOWN_ELSEWHERE == set(), "a new verb needs its row"
    (tmp_path / "class:1.png").write_bytes(b"class:1")
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all", admin_token=TOKEN) as rig:
        await rig.until_every_version_is_ready()
        rig.backend.profile = make_profile()
        first = {"weights": {"1.0": 100}}
        await rig.client.put("/models/digits/traffic", json=first, headers={"If-Match": "*"})
        env = {"TORCHGATE_URL": rig.url, "TORCHGATE_ADMIN_TOKEN": TOKEN, "TORCHGATE_PORT": "0"}
        env |= {"TORCHGATE_MODEL_STORE": ".", "TORCHGATE_DATABASE_URL": f"sqlite:///{tmp_path}/store/torchgate.db"}
        for path, (arguments, status, expected) in ROWS.items():
            found = await asyncio.to_thread(shown_by, *path, *arguments, folder=tmp_path, env=env)
            assert (found[0], bool(re.search(expected, found[1]))) == (status, True), (path, found[1])
            assert "Traceback" not in found[1]
            if path == ("rollouts", "list"):
                old = await asyncio.to_thread(shown_by, "rollout", "list", "digits", folder=tmp_path, env=env)
                assert old == found


async def test_the_url_stands_before_or_after_the_verb(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[:1]) as rig:
        env = {"TORCHGATE_URL": "http://127.0.0.1:9"}
        for arguments in (("--url", rig.url, "models", "list"), ("models", "list", "--url", rig.url)):
            status, shown = await asyncio.to_thread(shown_by, *arguments, env=env)
            assert (status, "digits" in shown) == (0, True), shown


def test_serve_stops_on_ctrl_c(tmp_path: Path) -> None:
    env = {"TORCHGATE_PORT": "0", "TORCHGATE_MODEL_STORE": str(tmp_path), "TORCHGATE_ADMIN_TOKEN": TOKEN}
    with terminal([*TORCHGATE, "serve"], env=env) as it:
        it.until('"port"')
        it.type("\x03")
        status, shown = it.until_end()
    assert status in {0, -2, 130}, shown
    assert "Traceback" not in shown
