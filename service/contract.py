"""What an archive says of itself: the part of contract.json that the gateway relies on, checked."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ContractInvalid(ValueError):
    """The contract lacks something or contradicts itself."""


@dataclass(frozen=True, slots=True)
class SelfCheckCase:
    """An input with the probabilities that the exported graph gave for it."""

    image: bytes
    probabilities: tuple[float, ...]


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

    @classmethod
    def unknown(cls, model: str, version: str) -> Self:
        """Return what is known of an archive that cannot be opened."""
        return cls(model, version, (), "", 0.0, (), {})

    @cached_property
    def quoted_classes(self) -> tuple[str, ...]:
        """Return the classes' names as JSON strings; made once, since every answer has some of them."""
        return tuple(json.dumps(name) for name in self.classes)

    def summary(self) -> dict[str, Any]:
        """Return what `GET /models` shows: the document without the self-check's images."""
        return {key: value for key, value in self.document.items() if key != "self_check"}


class _Case(BaseModel):
    image_b64: str
    probabilities: list[float]


class _SelfCheck(BaseModel):
    tolerance: float = Field(gt=0)
    cases: list[_Case] = Field(min_length=1)


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    schema_version: int = Field(ge=1, le=1)
    model: str
    version: str
    classes: list[str] = Field(min_length=2)
    weights_sha256: str
    self_check: _SelfCheck


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
    return Contract(
        model=checked.model,
        version=checked.version,
        classes=tuple(checked.classes),
        weights_sha256=checked.weights_sha256,
        tolerance=checked.self_check.tolerance,
        self_check=cases,
        document=document,
    )
