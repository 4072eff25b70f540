"""The files that TLS needs, and the context that they make."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from service.config.environment import env_name


@dataclass(frozen=True)
class TlsFiles:
    """Certificate chain and key of the server, and the CA of the clients' certificates if they may show any."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def read(self) -> ssl.SSLContext:
        """Return a context made of what the files hold now.

        Raises:
            ValueError: one cannot be read, holds something else, or the key is not the certificate's.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        given = f"{env_name('tls_cert_file')}={self.certificate}, {env_name('tls_key_file')}={self.key}"
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_passphrase)
        except (OSError, ValueError) as error:
            raise ValueError(f"{given}: {_reason(error)}; give a certificate chain and its key as PEM files") from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                given = f"{env_name('tls_client_ca_file')}={self.client_ca}"
                raise ValueError(f"{given}: {_reason(error)}; give the CA's certificates as a PEM file") from error
            # Who shows a certificate must show a good one; who may do what without one is decided per request.
            context.verify_mode = ssl.CERT_OPTIONAL
            # A resumed session would keep a certificate good that a new CA file no longer accepts.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def _refuse_passphrase() -> str:
    # Else OpenSSL would ask the terminal for a passphrase.
    raise ValueError("the key is encrypted; `openssl pkey -in KEY -out PLAIN` writes one that is not")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file").replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
