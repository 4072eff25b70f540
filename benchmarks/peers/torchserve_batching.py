"""A TorchServe handler for its own batching, in the documented way: `handle` gets the batch and answers as a list."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers import classify


class BatchingHandler:
    """Decodes every row, runs them as one batch. A row that cannot be decoded fails the batch, as in its examples."""

    def initialize(self, context: Any) -> None:
        """Load the graph that lies in the archive."""
        self.classifier = classify.Classifier(Path(context.system_properties["model_dir"]))

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """One answer for each row."""
        batch = [self.classifier.decode(row.get("body") or row["data"]) for row in data]
        for index in range(len(data)):
            context.set_response_content_type(index, "application/json")
        return [json.dumps(answer, separators=(",", ":")).encode() for answer in self.classifier.run(batch)]
