"""`torchgate completion`: in a real bash, a person types the beginning of a word and the tabulator."""

import shutil
import subprocess
from pathlib import Path

import pytest

from service.cli.completion import SHELLS
from tests.terminal import TORCHGATE, shown_by, terminal

BASH = shutil.which("bash")
NOTED = "torchgate() { printf '<%s>' \"$@\"; echo; }\n"  # says what it was asked for


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "torchgate.bash"
    path.write_text(
        subprocess.run([*TORCHGATE, "completion", "bash"], check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return path


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("pred\tdigit\t", "<predict><digit-7.png>"),
        ("mod\tli\t", "<models><list>"),
        ("rollouts pau\tdigits", "<rollouts><pause><digits>"),
        ("serve --max-im\t8", "<serve><--max-images><8>"),
        ("completion z\t", "<completion><zsh>"),
        ("state back\tdigit\t", "<state><backup><digit-7.png>"),
    ],
)
def test_bash_completes_verbs_options_and_files(script: Path, tmp_path: Path, typed: str, asked: str) -> None:
    (tmp_path / "digit-7.png").touch()
    (tmp_path / ".inputrc").write_text("set enable-bracketed-paste off\n")
    env = {"HOME": str(tmp_path), "INPUTRC": str(tmp_path / ".inputrc"), "PS1": "ready> "}
    with terminal(["bash", "--norc", "--noprofile", "-i"], tmp_path, columns=200, env=env) as it:
        it.type(f"source {script}; {NOTED}")
        it.type("echo it-is-$((1 + 1))\n")
        it.until("it-is-2")
        it.type(f"torchgate {typed}\n")
        it.until(asked)


@pytest.mark.parametrize("shell", SHELLS)
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    done = subprocess.run([*TORCHGATE, "completion", shell], check=True, stdout=subprocess.PIPE, text=True)
    assert "torchgate" in done.stdout
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=done.stdout, check=True, text=True)


def test_another_shell_is_refused_and_the_help_says_how_to_use_a_script() -> None:
    status, shown = shown_by("completion", "dash")
    assert (status, "'bash'" in shown) == (2, True)
    assert "source <(torchgate completion bash)" in " ".join(shown_by("completion", "--help")[1].split())
