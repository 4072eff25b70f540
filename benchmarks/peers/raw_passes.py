"""Forward passes and nothing around them: what the cores could do if serving cost nothing.

`python -m benchmarks.peers.raw_passes answers FOLDER` leaves each body's answer in the folder. `passes FOLDER
BATCH_SIZE...` is one process of a measurement: for each line "BATCH_SIZE WHAT SECONDS" on its standard input it prints
images/s. WHAT is `forward` or `decode`. `forward` is the graph alone on a batch that is stacked already. `decode` is
all that a peer's worker does with a batch: decode, stack, run the graph, rank, make the answers' dictionaries.
"""

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.peers.classify import Classifier
from benchmarks.peers.variables import EXPECTED


def run_passes(folder: Path, *batch_sizes: str) -> None:
    """Be one process of a measurement, warm for these sizes."""
    classifier = Classifier(folder, [int(size) for size in batch_sizes])
    contents = [path.read_bytes() for path in bodies(folder)]
    print("ready", flush=True)
    for line in sys.stdin:
        size, what, seconds = line.split()
        batch = [contents[number % len(contents)] for number in range(int(size))]
        stacked = torch.from_numpy(classifier.graph.stack([classifier.decode(content) for content in batch]))
        num_images, started = 0, time.perf_counter()
        with torch.inference_mode():
            while (elapsed := time.perf_counter() - started) < float(seconds):
                if what == "forward":
                    classifier.graph(stacked)
                else:
                    classifier.run([classifier.decode(content) for content in batch])
                num_images += len(batch)
        print(num_images / elapsed, flush=True)


def write_answers(folder: Path) -> None:
    """Leave the most probable class of every body: what every system must answer."""
    classifier = Classifier(folder)
    expected = {}
    for path in bodies(folder):
        (answer,) = classifier.run([classifier.decode(path.read_bytes())])
        expected[path.stem] = answer["top_k"][0]["label"]
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1))


def bodies(folder: Path) -> list[Path]:
    """Return the image files of a workload's folder."""
    return [path for path in sorted((folder / "bodies").iterdir()) if path.suffix != ".json"]


if __name__ == "__main__":
    {"answers": write_answers, "passes": run_passes}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
