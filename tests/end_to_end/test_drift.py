"""A model of real digits, trained for as long as a test can wait, says when what it is sent is not what it learnt.

Each processor trains another model. So the shifts are so large that no model answers them like digits, and scores are
compared with those of the answers at hand.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from PIL import Image, ImageFilter

from service.config.settings import Settings
from service.domain.contract import Reference
from service.monitoring.answer_window import AnswerWindow, TopClass
from service.monitoring.drift import DriftLimits, drift_scores
from service.persistence.archives.contents import read_contract
from service.persistence.archives.manifest import read_catalog
from service.persistence.archives.trust import AnyManifest
from tests.digits import inverted, png
from tests.gateway import GatewayProcess
from tests.stack import Trained, gateway_of_workers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(540)]

NUM_REQUESTS = 1000
NUM_CLIENTS = 16


def blurred(image: Image.Image) -> Image.Image:
    """Return a digit as a patch of light: strokes are three pixels wide."""
    return image.filter(ImageFilter.GaussianBlur(3))


def blank(image: Image.Image) -> Image.Image:
    """Return what a covered lens sees: every answer is the same, whatever the model."""
    return Image.new(image.mode, image.size)


@pytest.fixture(scope="module")
def digits(trained_digits: Trained) -> Iterator[GatewayProcess]:
    with gateway_of_workers(trained_digits.store) as process:
        process.until_every_version_is_ready()
        yield process


async def send(gateway: GatewayProcess, images: Sequence[Image.Image]) -> list[TopClass]:
    """Have each image answered by a request of its own; return classes and probabilities, in no order."""
    waiting = [png(image) for image in images]
    answers: list[TopClass] = []
    headers = {"Content-Type": "image/png"}

    async def client(http: httpx.AsyncClient) -> None:
        while waiting:
            answer = await http.post("/predict?top_k=1&version=1.0", content=waiting.pop(), headers=headers)
            assert answer.status_code == 200, answer.text
            prediction = answer.json()["predictions"][0]
            answers.append((int(prediction["label"]), prediction["probability"]))

    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as http:
        await asyncio.gather(*(client(http) for _ in range(NUM_CLIENTS)))
    return answers


def quality(gateway: GatewayProcess) -> dict[str, Any]:
    document = httpx.get(f"{gateway.url}/models/digits/quality", timeout=10, trust_env=False).raise_for_status().json()
    (found,) = (each for each in document["versions"] if each["version"] == "1.0")
    assert isinstance(found, dict)
    return found


def scores(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {each["kind"]: (each["value"], each["threshold"]) for each in found["scores"]}


def num_drift_lines(gateway: GatewayProcess) -> int:
    return sum("digits 1.0 drifts: " in record["message"] for record in gateway.records())


@pytest.fixture(scope="module")
def reference(trained_digits: Trained) -> Reference:
    """The model's answers to its validation images, as its archive has them."""
    (archive,) = (each for each in read_catalog(trained_digits.store, AnyManifest()).archives if each.version == "1.0")
    with (trained_digits.store / archive.file).open("rb") as file:
        found = read_contract(file, archive).reference
    assert found is not None
    return found


def scores_of(answers: Sequence[TopClass], reference: Reference) -> dict[str, tuple[float, float]]:
    """Return what the gateway should say of a window of these answers."""
    settings = Settings.model_construct()
    limits = DriftLimits(
        settings.drift_window_items, settings.drift_class_threshold, settings.drift_confidence_threshold
    )
    window = AnswerWindow(10, reference.edges, len(answers))
    assert window.add(answers)
    found = drift_scores(reference, limits, window.class_counts, window.confidence_counts)
    return {score.kind: (score.value, score.threshold) for score in found}


async def test_held_out_images_do_not_drift_however_they_are_drawn(
    reference: Reference, digits: GatewayProcess, held_out: tuple[list[Image.Image], list[int]]
) -> None:
    images, _ = held_out
    answers = sorted(await send(digits, images[:NUM_REQUESTS]))
    found = quality(digits)
    assert (found["state"], found["window_items"]) == ("ok", NUM_REQUESTS)
    drawn, highest = random.Random(0), {"class": 0.0, "confidence": 0.0}
    # Each half is a fair sample, for which a score passes its threshold once in ten thousand models. To draw with
    # replacement would add noise that the threshold does not know.
    for _ in range(20):
        for kind, (value, threshold) in scores_of(drawn.sample(answers, NUM_REQUESTS // 2), reference).items():
            assert value < threshold, kind
            highest[kind] = max(highest[kind], value)
    print(f"scores {scores(found)}; highest of 20 halves {highest}")


@pytest.mark.parametrize(
    ("name", "change", "kinds"),
    [
        ("inverted", inverted, {"class"}),
        ("blurred", blurred, {"class"}),
        ("blank", blank, {"class", "confidence"}),
        ("skewed", None, {"class"}),
    ],
)
async def test_shifted_images_drift_and_the_old_ones_end_it(
    digits: GatewayProcess,
    reference: Reference,
    held_out: tuple[list[Image.Image], list[int]],
    name: str,
    change: Callable[[Image.Image], Image.Image] | None,
    kinds: set[str],
) -> None:
    images, labels = held_out
    if change is not None:
        shifted = [change(image) for image in images]
    else:  # every other digit is a seven
        weights = [9.0 if label == 7 else 1.0 for label in labels]
        shifted = random.Random(0).choices(images, weights, k=NUM_REQUESTS)
    num_told = num_drift_lines(digits)
    await send(digits, images)
    assert quality(digits)["state"] == "ok"
    answers: list[TopClass] = []
    while quality(digits)["state"] == "ok":
        assert len(answers) < NUM_REQUESTS, "no drift was seen"
        answers += await send(digits, shifted[len(answers) : len(answers) + 50])
    num_sent, first = len(answers), scores(quality(digits))
    answers += await send(digits, shifted[num_sent:])
    found = quality(digits)
    print(f"{name}: drifting after {num_sent} requests at {first}; after {NUM_REQUESTS} at {scores(found)}")
    assert found["state"] == "drifting"
    assert {kind for kind, (value, threshold) in scores(found).items() if value > threshold} >= kinds
    # Which score is the first over its threshold depends on the model.
    for kind, expected in scores_of(answers, reference).items():
        assert scores(found)[kind] == pytest.approx(expected, abs=1e-4)
    assert num_drift_lines(digits) > num_told
    await send(digits, images)
    assert quality(digits)["state"] == "ok"
