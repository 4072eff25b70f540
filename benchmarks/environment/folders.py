"""The benchmark's folders. The work folder is ignored by git and can be deleted at any time."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "benchmarks" / "out"
PUBLISHED = ROOT / "benchmarks" / "results"
PEERS = ROOT / "benchmarks" / "peers"
SAMPLES = ROOT / "samples"
# The product runs in its own environment, without the peers.
PYTHON = ROOT / ".venv" / "bin" / "python"
