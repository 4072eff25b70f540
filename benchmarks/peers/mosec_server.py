"""Mosec, as its documentation builds an image classifier: decoding in `deserialize`, then the batch.

Its examples also have decoding in a stage of its own, which was no faster on two cores. Threads, processes and batching
are set on the stage, as the examples do.
"""

import os
from pathlib import Path
from typing import Any

from mosec import Server, Worker

from benchmarks.peers.classify import Classifier
from benchmarks.peers.variables import FOLDER, MAX_BATCH_SIZE, MAX_WAIT_MS, NUM_WORKERS


class Classify(Worker):
    """The only stage."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = Classifier(Path(os.environ[FOLDER]))

    def deserialize(self, data: bytes) -> Any:
        """The body is the image."""
        return self.classifier.decode(data)

    def forward(self, data: Any) -> Any:
        """Answers for a batch."""
        return self.classifier.run(data)


def main() -> None:
    """Serve on the port that the command line names."""
    num_workers, size, wait_ms = (int(os.environ[name]) for name in (NUM_WORKERS, MAX_BATCH_SIZE, MAX_WAIT_MS))
    server = Server()
    env = [{"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]} for _ in range(num_workers)]
    server.append_worker(Classify, num=num_workers, max_batch_size=size, max_wait_time=wait_ms, env=env)
    server.run()


if __name__ == "__main__":
    main()
