"""What an archive says of itself: the part of contract.json that the gateway relies on, checked."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHARES_TOLERANCE = 1e-3


class ContractInvalid(ValueError):
    """The contract lacks something or contradicts itself."""


@dataclass(frozen=True, slots=True)
class SelfCheckCase:
    """An input with the probabilities that the exported graph gave for it."""

    image: bytes
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """How the model answered its validation images: what its answers in service are compared with."""

    class_shares: tuple[float, ...]
    edges: tuple[float, ...]  # of the histogram of confidences, ascending, one more than there are counts
    confidence_counts: tuple[int, ...]

    @property
    def num_items(self) -> int:
        """Return how many images there were."""
        return sum(self.confidence_counts)

    @property
    def class_counts(self) -> tuple[float, ...]:
        """Return how many of them got each class."""
        return tuple(share * self.num_items for share in self.class_shares)


@dataclass(frozen=True)
class Contract:
    """One archive's promise: who it is, what its classes are called, and answers to check it by."""

    model: str
    version: str
    classes: tuple[str, ...]
    weights_sha256: str
    tolerance: float
    self_check: tuple[SelfCheckCase, ...]
    document: Mapping[str, Any]  # as written, for people and for what later readers need
    reference: Reference | None = None  # archives need not have one

    @classmethod
    def unknown(cls, model: str, version: str) -> Self:
        """Return what is known of an archive that cannot be opened."""
        return cls(model, version, (), "", 0.0, (), {})

    def summary(self) -> dict[str, Any]:
        """Return what `GET /models` shows: the document without the self-check's images."""
        return {key: value for key, value in self.document.items() if key != "self_check"}


class _Case(BaseModel):
    image_b64: str
    probabilities: list[float]


class _SelfCheck(BaseModel):
    tolerance: float = Field(gt=0)
    cases: list[_Case] = Field(min_length=1)


class _Histogram(BaseModel):
    edges: list[Annotated[float, Field(allow_inf_nan=False)]]
    counts: list[Annotated[int, Field(ge=0)]]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.edges) != len(self.counts) + 1 or any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("a histogram's edges must ascend, and be one more than its counts")
        if not sum(self.counts):
            raise ValueError("a histogram must count something")
        return self


class _Reference(BaseModel):
    class_prior: list[Annotated[float, Field(ge=0, le=1)]]
    confidence_histogram: _Histogram

    @model_validator(mode="after")
    def _check(self) -> Self:
        if abs(sum(self.class_prior) - 1) > SHARES_TOLERANCE:
            raise ValueError(f"the class prior sums to {sum(self.class_prior)}")
        return self


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    schema_version: int = Field(ge=1, le=1)
    model: str
    version: str
    classes: list[str] = Field(min_length=2)
    weights_sha256: str
    self_check: _SelfCheck
    reference: _Reference | None = None


def parse_contract(document: Mapping[str, Any]) -> Contract:
    """Return the contract that `document`, a parsed contract.json, holds.

    Raises:
        ContractInvalid: a field is missing, of the wrong form, or does not fit the others.
    """
    try:
        checked = _Document.model_validate(document)
        cases = tuple(
            SelfCheckCase(base64.b64decode(case.image_b64, validate=True), tuple(case.probabilities))
            for case in checked.self_check.cases
        )
    except (ValidationError, ValueError) as error:
        raise ContractInvalid(f"contract.json: {error}") from error
    if any(len(case.probabilities) != len(checked.classes) for case in cases):
        raise ContractInvalid(f"contract.json: a self-check case has not one probability for each of {checked.classes}")
    if checked.reference is not None and len(checked.reference.class_prior) != len(checked.classes):
        raise ContractInvalid(f"contract.json: the reference has not one share for each of {checked.classes}")
    return Contract(
        model=checked.model,
        version=checked.version,
        classes=tuple(checked.classes),
        weights_sha256=checked.weights_sha256,
        tolerance=checked.self_check.tolerance,
        self_check=cases,
        document=document,
        reference=None if checked.reference is None else _reference(checked.reference),
    )


def _reference(checked: _Reference) -> Reference:
    histogram = checked.confidence_histogram
    return Reference(tuple(checked.class_prior), tuple(histogram.edges), tuple(histogram.counts))
