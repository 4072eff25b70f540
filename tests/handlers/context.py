"""What TorchServe hands to a handler, as far as a handler looks at it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from handlers.image_classifier import ImageClassifier


class FakeContext:
    """TorchServe's context for one call: headers in, statuses and content types out, by row."""

    def __init__(
        self, folder: Path, gpu_id: int | None = None, headers: Sequence[Mapping[str, str]] = ({}, {}, {}, {})
    ) -> None:
        self.model_name = "toy"
        self.manifest = {"model": {"serializedFile": "model.pt"}}
        self.system_properties = {"model_dir": str(folder), "gpu_id": gpu_id}
        self.headers = headers
        self.statuses: dict[int, tuple[int, str]] = {}
        self.content_types: dict[int, str] = {}

    def get_request_header(self, idx: int, key: str) -> str | None:
        return self.headers[idx].get(key)

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        self.statuses[idx] = (code, phrase)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.content_types[idx] = value


def load(folder: Path, **options: Any) -> ImageClassifier:
    """A handler that has loaded a model folder."""
    handler = ImageClassifier()
    handler.initialize(FakeContext(folder, **options))
    return handler
