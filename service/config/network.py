"""Where the gateway listens, to whom, and how long connections last."""

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from service.config.environment import env_name
from service.config.tls import TlsFiles

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class NetworkSettings(BaseModel):
    """Where the gateway listens, to whom, and how long connections last."""

    host: str = Field("127.0.0.1", description="Address that the gateway listens on.")
    port: int = Field(
        8000, ge=0, le=65535, description="Port that the gateway listens on. 0 takes a free one; the log names it."
    )
    admin_host: str = Field("127.0.0.1", description="Address of the admin listener.")
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a second listener for changes, reads and metrics. The public port then answers only "
        "/predict, /feedback, /healthz, /readyz and /errors. Unset: one listener answers everything.",
    )
    allowed_hosts: str | None = Field(
        None,
        description="Names and addresses, separated by commas, that a request's `Host` may have; `*` allows any. "
        "Unset: loopback names if the gateway listens on loopback only, otherwise any.",
    )
    trusted_proxies: str | None = Field(
        None,
        description="Addresses and networks of the proxies in front, separated by commas. The gateway believes only "
        "their `X-Forwarded-For` and `X-Forwarded-Proto`.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="PEM file with the server's certificate chain; it turns TLS on. The gateway reads it again when "
        "it changes, and on SIGHUP.",
    )
    tls_key_file: Path | None = Field(None, description="PEM file with the certificate's private key, not encrypted.")
    tls_client_ca_file: Path | None = Field(
        None, description="PEM file with the CA of client certificates; see TORCHGATE_CLIENT_CERTIFICATES."
    )
    client_certificates: Literal["off", "accept", "require"] = Field(
        "off",
        description="How changes are authorized: `off` by the admin token, `accept` by the token or a client "
        "certificate, `require` by both. The event log names the certificate's subject.",
    )
    keep_alive_seconds: int = Field(
        75,
        ge=1,
        description="How long an idle connection stays open. Set it longer than the proxies in front keep theirs.",
    )
    max_connections: int = Field(
        4096,
        ge=16,
        le=1_000_000,
        description="Largest number of connections to the public listener. At the limit, a new connection replaces "
        "an idle one of an address with the most connections. If none is idle, the new one gets 503, or is closed if "
        "many are refused at once. The admin listener takes 128.",
    )
    max_connections_per_address: int = Field(
        1024,
        ge=1,
        description="The same limit for one address (for IPv6: one /64 network). Trusted proxies have no such limit.",
    )
    write_timeout_seconds: float = Field(
        30,
        gt=0,
        description="Time within which a client must read 16 KiB of an answer; if less is left, all of it. "
        "Otherwise the gateway closes the connection.",
    )
    lame_duck_seconds: float = Field(
        0,
        ge=0,
        le=600,
        description="After SIGTERM, how long /readyz says 503 while connections are still accepted. Behind a load "
        "balancer, set it longer than the balancer takes to notice.",
    )
    drain_seconds: float = Field(
        20,
        ge=0,
        description="After the lame duck, how long requests in progress may take before the gateway stops.",
    )
    handover_dir: Path | None = Field(
        None,
        description="Private folder in which `serve --take-over` meets the running gateway. Unset is torchgate-<user "
        "id> in the temporary folder.",
    )
    watchdog_seconds: float = Field(
        60,
        ge=0,
        le=3600,
        description="How long the event loop may hang before the gateway ends itself, so that a supervisor restarts "
        "it. 0 turns this off.",
    )

    @property
    def tls_files(self) -> TlsFiles | None:
        """Return the files of TLS, None without it."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """Return the networks of the trusted proxies."""
        return tuple(ipaddress.ip_network(each, strict=False) for each in listed(self.trusted_proxies))

    @property
    def host_names(self) -> frozenset[str] | None:
        """Return the names that a request may be for, without ports; None for any."""
        names = frozenset(each.strip("[]").lower() for each in listed(self.allowed_hosts))
        return None if "*" in names or not names else names

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        for name in ("trusted_proxies", "allowed_hosts"):
            if (given := getattr(self, name)) is not None and not listed(given):
                raise ValueError(f"{env_name(name)}={given!r} names nobody; unset it, or name somebody")
        try:
            self.proxy_networks  # noqa: B018 - it is read to be checked
        except ValueError as error:
            raise ValueError(f"{env_name('trusted_proxies')}: {error}") from error
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            there, missing = ("tls_cert_file", "tls_key_file")[:: -1 if self.tls_cert_file is None else 1]
            raise ValueError(f"{env_name(there)} needs {env_name(missing)}: set both or none")
        for name, needed in (("tls_client_ca_file", "tls_cert_file"), ("client_certificates", "tls_client_ca_file")):
            if getattr(self, name) not in {None, "off"} and getattr(self, needed) is None:
                raise ValueError(f"{env_name(name)}={getattr(self, name)} needs {env_name(needed)}")
        if self.tls_client_ca_file is not None and self.client_certificates == "off":
            raise ValueError(f"{env_name('tls_client_ca_file')} has no use while {env_name('client_certificates')}=off")
        if self.tls_files is not None:
            self.tls_files.read()
        return self


def listed(text: str | None) -> tuple[str, ...]:
    """Return what a list separated by commas holds."""
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
