"""The files that TLS needs, and the context that they make."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from service.config.environment import env_name


@dataclass(frozen=True)
class TlsFiles:
    """Certificate chain and key of the server."""

    certificate: Path
    key: Path

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
        return context


def _refuse_passphrase() -> str:
    raise ValueError("the key is encrypted")  # else OpenSSL would ask the terminal for a passphrase


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file").replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
