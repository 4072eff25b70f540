"""How the harness tells a peer's server what to serve; the harness imports no server, since those import the peers."""

FOLDER = "BENCH_FOLDER"  # the unpacked archive
NUM_WORKERS = "BENCH_WORKERS"
MAX_BATCH_SIZE = "BENCH_MAX_BATCH_SIZE"
MAX_WAIT_MS = "BENCH_MAX_WAIT_MS"
# In the workload's folder: the most probable class of each body, which every system must answer.
EXPECTED = "expected.json"
