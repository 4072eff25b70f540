"""An archive's contract.json: the part that the gateway relies on, checked."""

import base64
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AliasPath, BaseModel, Field, ValidationError, model_validator

from service.domain.backend import MOST_CLASSES

SHARES_TOLERANCE = 1e-3
MOST_LEVELS = 64  # of a document; JSON that is nested more deeply cannot be written again
MOST_COUNTED = 2**53  # up to here a float holds every integer


class ContractInvalid(ValueError):
    """The contract lacks something or contradicts itself."""


class SelfCheckCase(BaseModel, frozen=True):
    """An input with the probabilities that the exported graph gave for it."""

    image: Annotated[bytes, AfterValidator(partial(base64.b64decode, validate=True))] = Field(alias="image_b64")
    probabilities: tuple[float, ...]


class Reference(BaseModel, frozen=True):
    """How the model answered its validation images; its answers in service are compared with that."""

    class_shares: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(alias="class_prior")
    edges: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(  # of the histogram's bins, ascending
        validation_alias=AliasPath("confidence_histogram", "edges")
    )
    confidence_counts: tuple[Annotated[int, Field(ge=0, le=MOST_COUNTED)], ...] = Field(  # one for each bin
        validation_alias=AliasPath("confidence_histogram", "counts")
    )

    @property
    def num_items(self) -> int:
        """Return the number of images."""
        return sum(self.confidence_counts)

    @property
    def class_counts(self) -> tuple[float, ...]:
        """Return the number of images of each class."""
        return tuple(share * self.num_items for share in self.class_shares)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.edges) != len(self.confidence_counts) + 1 or any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("a histogram's edges must ascend, and be one more than its counts")
        if not self.num_items:
            raise ValueError("a histogram must count something")
        if abs(sum(self.class_shares) - 1) > SHARES_TOLERANCE:
            raise ValueError(f"the class prior sums to {sum(self.class_shares)}")
        return self


class Contract(BaseModel, frozen=True):
    """One archive's promise: its name, the names of its classes, and answers to check it by."""

    schema_version: int = Field(ge=1, le=1)
    model: str
    version: str
    classes: tuple[str, ...] = Field(min_length=2, max_length=MOST_CLASSES)
    weights_sha256: str
    tolerance: float = Field(gt=0, validation_alias=AliasPath("self_check", "tolerance"))
    self_check: tuple[SelfCheckCase, ...] = Field(min_length=1, validation_alias=AliasPath("self_check", "cases"))
    reference: Reference | None = None
    document: Mapping[str, Any] = {}  # all of contract.json as it was written
    shown: Mapping[str, Any] = {}  # the same, as every reader of JSON can read it

    @staticmethod
    def unknown(model: str, version: str) -> "Contract":
        """Return the contract of an archive that has not been opened: without classes."""
        rest: dict[str, Any] = {"schema_version": 1, "weights_sha256": "", "tolerance": 0.0, "self_check": ()}
        return Contract.model_construct(model=model, version=version, classes=(), **rest)

    def summary(self) -> dict[str, Any]:
        """Return what `GET /models` shows: the document without the self-check's images."""
        return {key: value for key, value in self.shown.items() if key != "self_check"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(len(case.probabilities) != len(self.classes) for case in self.self_check):
            raise ValueError(f"a self-check case has not one probability for each of {self.classes}")
        if self.reference is not None and len(self.reference.class_shares) != len(self.classes):
            raise ValueError(f"the reference has not one share for each of {self.classes}")
        return self


def parse_contract(document: Mapping[str, Any]) -> Contract:
    """Return the contract that `document`, a parsed contract.json, holds.

    Raises:
        ContractInvalid: a field is missing, of the wrong form, or does not fit the others.
    """
    try:
        shown = _readable(document, MOST_LEVELS)
        return Contract.model_validate({**shown, "document": document, "shown": shown})
    except ValidationError as error:
        raise ContractInvalid(f"contract.json: {error}") from error


def _readable(value: Any, num_levels: int) -> Any:
    """Return a value of JSON with `\\udcff` in the place of what is no character, as in a name that is not UTF-8.

    One such name, of a class, would leave no scrape of /metrics and no list of models readable.
    """
    if not num_levels:
        raise ContractInvalid(f"contract.json is nested more than {MOST_LEVELS} levels deep")
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="backslashreplace").decode()
        case dict():
            return {_readable(key, num_levels): _readable(each, num_levels - 1) for key, each in value.items()}
        case list():
            return [_readable(each, num_levels - 1) for each in value]
    return value
