"""A contract's reference is used as it is, or the archive is refused."""

from typing import Any

import pytest

from service.domain.contract import ContractInvalid, parse_contract
from tests.stores import make_contract


def test_a_reference_says_how_many_images_had_each_class() -> None:
    reference = parse_contract(make_contract("digits", "1.0", "fp32")).reference
    assert reference is not None
    assert reference.num_items == 400
    assert reference.class_counts == (100, 100, 100, 100)


@pytest.mark.parametrize(
    ("prior", "edges", "counts"),
    [
        ([0.5, 0.5], [0, 1], [10]),  # there are four classes
        ([0.25, 0.25, 0.25, 0.5], [0, 1], [10]),
        ([1.5, -0.5, 0, 0], [0, 1], [10]),
        ([0.25] * 4, [0, 1], [10, 10]),
        ([0.25] * 4, [0, 1, 0.5], [10, 10]),
        ([0.25] * 4, [0, 0.5, 1], [0, 0]),
        ([0.25] * 4, [0, 0.5, 1], [-1, 2]),
    ],
)
def test_a_reference_that_cannot_be_one_is_refused(prior: list[float], edges: list[float], counts: list[int]) -> None:
    document: dict[str, Any] = make_contract("digits", "1.0", "fp32")
    document["reference"] = {"class_prior": prior, "confidence_histogram": {"edges": edges, "counts": counts}}
    with pytest.raises(ContractInvalid):
        parse_contract(document)


def test_a_name_that_is_not_utf_8_is_shown_so_that_everybody_can_read_it() -> None:
    document: dict[str, Any] = make_contract("digits", "1.0", "fp32")
    document |= {"classes": ["zero", "one", "two", "thr\udcff"], "evaluation": {"by \udcff": ["\udcff"]}}
    contract = parse_contract(document)
    assert contract.classes == ("zero", "one", "two", "thr\\udcff")
    assert contract.summary()["evaluation"] == {"by \\udcff": ["\\udcff"]}
    assert contract.document == document  # which a worker describes as it is


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    document: dict[str, Any] = make_contract("digits", "1.0", "fp32")
    for _ in range(300):
        document["more"] = [document.get("more")]
    with pytest.raises(ContractInvalid, match="64 levels"):
        parse_contract(document)


@pytest.mark.parametrize("image", [5, "Y2xhc3M6MQ", "Y2xhc3M6MQ==?", None])
def test_a_self_check_whose_image_is_not_base64_is_refused(image: Any) -> None:
    document: dict[str, Any] = make_contract("digits", "1.0", "fp32")
    document["self_check"]["cases"][0]["image_b64"] = image
    with pytest.raises(ContractInvalid, match="image_b64"):
        parse_contract(document)
