"""A model of real digits, trained for as long as a test can wait, says when what it is sent is not what it learnt."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFilter

from service.config.settings import Settings
from service.monitoring.answer_window import Answer, AnswerWindow
from service.monitoring.drift import Drift, DriftLimits, kolmogorov_smirnov
from service.persistence.model_store import open_archive, read_catalog
from tests.digits import inverted, png
from tests.gateway import GatewayProcess
from tests.stack import Trained, gateway_of_workers
from training.artifacts import Run
from training.data.dataset import load_split
from training.evaluate import confidence_edges

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(540)]

NUM_REQUESTS = 1000
NUM_CLIENTS = 16


def blurred(image: Image.Image, radius: float = 1.5) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))


@pytest.fixture(scope="module")
def digits(trained_digits: Trained) -> Iterator[GatewayProcess]:
    with gateway_of_workers(trained_digits.store) as process:
        process.until_every_version_is_ready()
        yield process


async def send(gateway: GatewayProcess, images: Sequence[Image.Image]) -> list[Answer]:
    """Have each image answered by a request of its own; return classes and probabilities, in no order."""
    waiting = [png(image) for image in images]
    answers: list[Answer] = []
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


async def test_held_out_images_do_not_drift_however_they_are_drawn(
    trained_digits: Trained, digits: GatewayProcess, held_out: tuple[list[Image.Image], list[int]]
) -> None:
    images, _ = held_out
    answers = sorted(await send(digits, images[:NUM_REQUESTS]))
    found = quality(digits)
    assert (found["state"], found["window_items"]) == ("ok", NUM_REQUESTS)
    (archive,) = (each for each in read_catalog(trained_digits.store).archives if each.version == "1.0")
    reference = open_archive(trained_digits.store, archive).reference
    assert reference is not None
    settings = Settings.model_construct()
    limits = DriftLimits(
        settings.drift_window_items, settings.drift_class_threshold, settings.drift_confidence_threshold
    )
    drift, drawn, highest = Drift(reference, limits), random.Random(0), {"class": 0.0, "confidence": 0.0}
    for _ in range(100):
        window = AnswerWindow(10, reference.edges, NUM_REQUESTS)
        assert window.add(drawn.choices(answers, k=NUM_REQUESTS))
        for score in drift.scores(window.class_counts, window.confidence_counts):
            assert score.value < score.threshold, score
            highest[score.kind] = max(highest[score.kind], score.value)
    print(f"scores {scores(found)}; highest of 100 resamplings {highest}")


async def test_the_references_edges_see_a_blur_that_equal_bins_hardly_do(
    trained_digits: Trained, digits: GatewayProcess, held_out: tuple[list[Image.Image], list[int]]
) -> None:
    pixels, _ = load_split(Run(trained_digits.run), "validation")
    images, _ = held_out
    expected, sharp, blurry = [
        [confidence for _, confidence in await send(digits, each)]
        for each in (
            [Image.fromarray(each[0]) for each in pixels.numpy()],
            images,
            [blurred(image, 1) for image in images],
        )
    ]
    distances = {}
    for name, edges in (("reference", confidence_edges()), ("twenty equal bins", np.arange(21) / 20)):
        counts = [np.histogram(np.minimum(each, 1), bins=edges)[0].tolist() for each in (expected, sharp, blurry)]
        distances[name] = [kolmogorov_smirnov(each, counts[0]) for each in counts[1:]]
    print(f"distance of held-out images, and blurred by a pixel: {distances}")
    assert distances["reference"][1] > 1.2 * distances["twenty equal bins"][1]
    assert distances["reference"][1] > 1.5 * distances["reference"][0]


@pytest.mark.parametrize(
    ("name", "change", "kinds"),
    [
        ("inverted", inverted, {"class", "confidence"}),
        ("blurred", blurred, {"class", "confidence"}),
        ("skewed", None, {"class"}),
    ],
)
async def test_shifted_images_drift_and_the_old_ones_end_it(
    digits: GatewayProcess,
    held_out: tuple[list[Image.Image], list[int]],
    name: str,
    change: Callable[[Image.Image], Image.Image] | None,
    kinds: set[str],
) -> None:
    images, labels = held_out
    if change is not None:
        shifted = [change(image) for image in images]
    else:  # every other digit is a seven
        weights = np.where(np.array(labels) == 7, 9.0, 1.0)
        shifted = random.Random(0).choices(images, weights.tolist(), k=NUM_REQUESTS)
    await send(digits, images)
    assert quality(digits)["state"] == "ok"
    num_sent = 0
    while quality(digits)["state"] == "ok":
        assert num_sent < NUM_REQUESTS, "no drift was seen"
        await send(digits, shifted[num_sent : num_sent + 50])
        num_sent += 50
    first = scores(quality(digits))
    await send(digits, shifted[num_sent:])
    found = quality(digits)
    print(f"{name}: drifting after {num_sent} requests at {first}; after {NUM_REQUESTS} at {scores(found)}")
    assert found["state"] == "drifting"
    assert {kind for kind, (value, threshold) in scores(found).items() if value > threshold} >= kinds
    assert any("digits 1.0 drifts: class" in record["message"] for record in digits.records())
    await send(digits, images)
    assert quality(digits)["state"] == "ok"
