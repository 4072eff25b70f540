"""Which admin token goes with a call: the one that is set, else that of the gateway on this machine and port."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import httpx

from service.cli.gateway import CallFailed, Gateway
from service.config.environment import read_secret
from service.config.token_file import TokenFile, TokenFileUnsafe

TOKEN_VARIABLE = "TORCHGATE_ADMIN_TOKEN"  # noqa: S105 - a name
FILE_VARIABLE = f"{TOKEN_VARIABLE}_FILE"
FOLDER_VARIABLE = "TORCHGATE_TOKEN_DIR"
PORTS = {"http": 80, "https": 443}


def find_token(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token for the gateway at `url`, or None if there is none; raises CallFailed if it cannot be read."""
    try:
        if token := environment.get(TOKEN_VARIABLE):
            return token
        if path := environment.get(FILE_VARIABLE):
            return read_secret(Path(path))
        file = _file(url, environment)
        return None if file is None else file.read()
    except ValueError as error:
        raise CallFailed(f"{FILE_VARIABLE}={path}: {error}") from error
    except (OSError, TokenFileUnsafe) as error:
        raise CallFailed(f"the admin token cannot be read: {error}") from error


def shown_token(gateway: Gateway, url: str) -> str:
    """Return the gateway's token; raises CallFailed, saying where it was looked for, if there is none."""
    if gateway.token:
        return gateway.token
    file = _file(url, os.environ)
    place = f"{url} is on another machine" if file is None else f"{file.path} is not there"
    raise CallFailed(
        f"no admin token is known for {url}: {TOKEN_VARIABLE} is not set, and {place}. Run this on the gateway's "
        f"machine, as its user, with its {FOLDER_VARIABLE}"
    )


def _file(url: str, environment: Mapping[str, str]) -> TokenFile | None:
    """Return where a gateway of this machine keeps its token; None for another machine, which must not be sent it."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return None
    if not _is_this_machine(parts.host):
        return None
    folder = environment.get(FOLDER_VARIABLE)
    return TokenFile(Path(folder) if folder else None, parts.port or PORTS.get(parts.scheme, 0))


def _is_this_machine(host: str) -> bool:
    """Return whether every address of a host is one that this machine can listen on."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
    except (OSError, UnicodeError):
        return False
    return bool(host)
