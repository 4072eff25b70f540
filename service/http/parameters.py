"""Query and headers of POST /predict, checked by their schemas; the usual request has neither and skips them."""

from functools import lru_cache
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from service.errors.request import ParameterInvalid
from service.http.body import RequestHeaders
from service.http.schemas.predict import PredictHeaders, PredictQuery

Fields = TypeVar("Fields", bound=BaseModel)
NO_QUERY = PredictQuery()
NO_HEADERS = PredictHeaders()
HEADER_NAMES = {field: field.replace("_", "-") for field in PredictHeaders.model_fields}
# Most callers ask for the same thing again and again.
MAX_REMEMBERED = 256
HEADER_KEYS = {field: name.encode() for field, name in HEADER_NAMES.items()}
HEADERS = frozenset(HEADER_KEYS.values())


def read_parameters(query_string: bytes, headers: RequestHeaders) -> tuple[PredictQuery, PredictHeaders]:
    """Return what the query and the headers ask for; ParameterInvalid names what is wrong with them."""
    query = _read_query(query_string) if query_string else NO_QUERY
    if HEADERS.isdisjoint(headers):
        return query, NO_HEADERS
    return query, _read_headers(tuple([(field, headers[key]) for field, key in HEADER_KEYS.items() if key in headers]))


@lru_cache(MAX_REMEMBERED)
def _read_query(query_string: bytes) -> PredictQuery:
    pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    return _checked(PredictQuery, dict(pairs), "query")


@lru_cache(MAX_REMEMBERED)
def _read_headers(given: tuple[tuple[str, bytes], ...]) -> PredictHeaders:
    return _checked(PredictHeaders, {field: value.decode("latin-1") for field, value in given}, "header")


def _checked(model: type[Fields], values: dict[str, str], place: str) -> Fields:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False):
            name = ".".join(str(step) for step in fault["loc"])
            faults.append(f"{place}.{HEADER_NAMES.get(name, name)}: {fault['msg']} (given: {fault['input']!r})")
        raise ParameterInvalid("; ".join(faults)) from error
