"""The answer's JSON document."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.batching.request import InferenceRequest
from service.domain.backend import ItemError, Ranking, Target
from service.http.prediction import answer_body
from service.serving.model_version import ModelVersion


@pytest.mark.parametrize("name", ["cat", 'a "quoted" name', "Käse", "not UTF-8: \udcff"])
def test_any_name_and_any_float_come_back_as_they_were(name: str) -> None:
    version = SimpleNamespace(contract=SimpleNamespace(classes=(name, "dog")), target=Target("pets", "1.0"))
    probabilities = (0.1 + 0.2, 1.0582194761116337e-06)
    call = InferenceRequest(2, 2, 0.0, lambda: None)
    call.answer(0, Ranking(list(enumerate(probabilities))))
    call.answer(1, ItemError("image_empty", "it is empty"))
    document: dict[str, Any] = json.loads(answer_body(cast(ModelVersion, version), call, "an-id"))
    assert (document["id"], document["model"], document["version"]) == ("an-id", "pets", "1.0")
    ranked, failed = document["predictions"]
    assert (ranked["label"], ranked["probability"]) == (name, probabilities[0])
    assert [each["probability"] for each in ranked["top_k"]] == list(probabilities)
    assert failed == {"error": {"code": "image_empty", "message": "it is empty"}}
