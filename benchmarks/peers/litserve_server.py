"""LitServe, as its documentation builds a batched server: decode_request, predict on the batch, unbatch."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import numpy.typing as npt
from fastapi import Request

from benchmarks.peers.classify import Classifier
from benchmarks.peers.variables import FOLDER, MAX_BATCH_SIZE, MAX_WAIT_MS, NUM_WORKERS


class ImageAPI(litserve.LitAPI):
    """Images as base64 in JSON, the form in which its examples send them."""

    def setup(self, device: str) -> None:
        """Load the graph, once in each worker."""
        self.classifier = Classifier(Path(os.environ[FOLDER]))

    def decode_request(self, request: Request) -> npt.NDArray[np.uint8]:
        """One request's pixels. By the annotation LitServe reads the body as JSON, and that is what comes in."""
        return self.classifier.decode(base64.b64decode(request["image"]))

    def batch(self, inputs: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
        """Keep the list: the classifier stacks it."""
        return inputs

    def predict(self, batch: Any) -> list[dict[str, Any]]:
        """Answers for a batch; one image alone when batching is off."""
        return self.classifier.run(batch)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One answer for each request."""
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return output


def main() -> None:
    """Serve on the port that the command line names."""
    api = ImageAPI(max_batch_size=int(os.environ[MAX_BATCH_SIZE]), batch_timeout=int(os.environ[MAX_WAIT_MS]) / 1000)
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=int(os.environ[NUM_WORKERS]), fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
