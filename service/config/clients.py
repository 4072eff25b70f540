"""The file of named clients: their keys, what each may do, and how much."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from service.config.environment import read_file

Scope = Literal["predict", "read", "change"]
LEAST_CHARACTERS = 8  # of a token or key
MOST_SHARE = 100
MOST_BYTES = 1024 * 1024
MOST_CLIENTS = 200  # each is a value of metrics' labels
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
# The last are those of TORCHGATE_API_KEYS.
RESERVED = re.compile(r"admin|anybody|gateway|key-[0-9]+")
SHOWN_FIELD = re.compile(r"[a-z_]{1,20}|sha256|[0-9]{1,6}")  # anything else may be a key in the wrong place

Key = Annotated[str, StringConstraints(min_length=LEAST_CHARACTERS)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ClientEntry(BaseModel):
    """One client, a table of the file under its name."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    keys: tuple[Key, ...] = ()
    sha256: tuple[Digest, ...] = ()  # of keys that the file does not hold
    scopes: frozenset[Scope] = Field(frozenset({"predict"}), min_length=1)
    share: float = Field(1, ge=1, le=MOST_SHARE)
    images_per_second: float | None = Field(None, gt=0)  # None is the setting
    burst_images: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _has_key(self) -> "ClientEntry":
        if not (self.keys or self.sha256):
            raise ValueError("it has neither keys nor sha256")
        if any(key != key.strip() for key in self.keys):
            raise ValueError("a key begins or ends with a blank, which no request can send; remove it")
        return self

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Return what its keys are known by."""
        return (*(digest(key.encode()) for key in self.keys), *map(bytes.fromhex, self.sha256))


def digest(key: bytes) -> bytes:
    """Return what a key is known by."""
    return hashlib.sha256(key).digest()


_ENTRIES = TypeAdapter(dict[str, ClientEntry])


class ClientsInvalid(ValueError):
    """The file cannot be used; the message names the file, the client and the fault, and no key."""


def read_clients(path: Path) -> Mapping[str, ClientEntry]:
    """Return the clients of a file by their names; raises ClientsInvalid."""
    try:
        found = tomllib.loads(read_file(path, MOST_BYTES).decode())
        entries = _ENTRIES.validate_python(found)
    except OSError as error:
        raise ClientsInvalid(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        faults = [f"{_place(fault['loc'], list(found))}: {fault['msg']}" for fault in error.errors()]
        raise ClientsInvalid(f"{path}: {'; '.join(faults)}") from None  # the cause shows keys
    except RecursionError:
        raise ClientsInvalid(f"{path}: it is nested too deeply") from None
    except ValueError as error:  # no TOML, or no text
        raise ClientsInvalid(f"{path}: it is no TOML: {error}") from None
    if not 1 <= len(entries) <= MOST_CLIENTS:
        raise ClientsInvalid(f"{path}: it has {len(entries)} clients; 1 to {MOST_CLIENTS} are allowed")
    for number, name in enumerate(entries, 1):
        if not NAME.fullmatch(name):
            raise ClientsInvalid(
                f"{path}: client {number} cannot have its name; take lower-case letters, digits and . _ -, at most 40"
            )
        if RESERVED.fullmatch(name):
            raise ClientsInvalid(f"{path}: a client cannot be called {name}: the gateway uses this name; take another")
    owners: dict[bytes, str] = {}
    for name, entry in entries.items():
        for each in entry.digests:
            if owners.setdefault(each, name) != name:
                raise ClientsInvalid(f"{path}: {owners[each]} and {name} have one key; each needs its own")
    return entries


def _place(steps: tuple[int | str, ...], names: list[str]) -> str:
    """Return where a fault is; what may be a key is not shown."""
    client, *rest = map(str, steps)
    shown = [client if NAME.fullmatch(client) else f"client {names.index(client) + 1}"]
    shown += [each if SHOWN_FIELD.fullmatch(each) else "(not shown)" for each in rest]
    return ".".join(shown)
