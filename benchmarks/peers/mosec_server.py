"""Mosec, as its documentation builds an image classifier.

Its examples put decoding either into a stage of its own (resnet50) or into `deserialize` of the first stage (BERT);
the number of stages chooses. Threads, processes and batching are set on the stage, as the examples do.
"""

import os
from pathlib import Path
from typing import Any

from mosec import Server, Worker

from benchmarks.peers.classify import Classifier
from benchmarks.peers.variables import FOLDER, MAX_BATCH_SIZE, MAX_WAIT_MS, NUM_WORKERS, STAGES


class Decode(Worker):
    """The first of two stages: bytes to pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = Classifier(Path(os.environ[FOLDER]))

    def deserialize(self, data: bytes) -> Any:
        """The body is the image."""
        return data

    def forward(self, data: Any) -> Any:
        """One image's pixels."""
        return self.classifier.decode(data)


class Classify(Worker):
    """The last stage: a batch of pixels to answers."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = Classifier(Path(os.environ[FOLDER]))

    def forward(self, data: Any) -> Any:
        """Answers for a batch."""
        return self.classifier.run(data)


class DecodeAndClassify(Classify):
    """Both in one stage."""

    def deserialize(self, data: bytes) -> Any:
        """The body is the image."""
        return self.classifier.decode(data)


def main() -> None:
    """Serve on the port that the command line names."""
    num_workers, size, wait_ms = (int(os.environ[name]) for name in (NUM_WORKERS, MAX_BATCH_SIZE, MAX_WAIT_MS))
    server = Server()
    env = [{"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]} for _ in range(num_workers)]
    last = {"num": num_workers, "max_batch_size": size, "max_wait_time": wait_ms, "env": env}
    if os.environ[STAGES] == "2":
        server.append_worker(Decode, num=1)
        server.append_worker(Classify, **last)
    else:
        server.append_worker(DecodeAndClassify, **last)
    server.run()


if __name__ == "__main__":
    main()
