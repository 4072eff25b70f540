import subprocess
import sys
from pathlib import Path

from tests.torchserve_process import ROOT

SOURCE = "service/backends/torchserve/inference.proto"


def test_generated_code_is_what_the_source_gives(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, SOURCE], cwd=ROOT, check=True, timeout=60)
    for name in ("inference_pb2.py", "inference_pb2.pyi"):
        committed = (ROOT / "service" / "backends" / "torchserve" / name).read_text()
        assert (tmp_path / "service" / "backends" / "torchserve" / name).read_text() == committed, "run `make proto`"
