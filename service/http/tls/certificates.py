"""The certificate that new connections get: the one in the files, read anew when they change."""

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from cryptography import x509

from service.admin.file_watch import FileWatch
from service.config.tls import TlsFiles
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class Certificates:
    """Hands the newest good certificate to every handshake; connections keep the one that they began with.

    Each reading makes a context of its own, which takes the place of the one before only when it is complete. So a
    handshake never sees a new certificate with an old key, and files that cannot be used change nothing.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._watch = FileWatch(*(path for path in (files.certificate, files.key, files.client_ca) if path is not None))
        self._newest = files.read()
        self.context = files.read()  # the server's; it stays the same, and each handshake leaves it for the newest
        self.context.sni_callback = self._use_newest
        self.expires_at = _expiry(files.certificate).timestamp()  # the first of the chain to expire, Unix time
        self.is_broken = False  # whether the files hold nothing usable now

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # OpenSSL asks this for every handshake, also without a server name.
        connection.context = self._newest

    @contextlib.asynccontextmanager
    async def watched(self, metrics: Metrics) -> AsyncIterator[None]:
        """Read the files while the context is entered: when they change, and on SIGHUP."""
        metrics.tls_certificate_expiry.set_function(lambda: self.expires_at)
        metrics.tls_files_broken.set_function(lambda: self.is_broken)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._watch.asked.set)
        task = loop.create_task(self._follow())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            ignore_sighup()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self._watch.until_changed()
            try:
                newest, expires = await asyncio.to_thread(self._read)
            except ValueError as error:
                self.is_broken = True
                logger.error(  # noqa: TRY400 - the trace leads into OpenSSL
                    "the new certificate cannot be used, the one before stays: %s. Fix the files; they are read again "
                    "when they change",
                    error,
                )
            else:
                self._newest, self.expires_at, self.is_broken = newest, expires.timestamp(), False
                logger.info("new connections get the certificate that expires on %s", expires.isoformat())

    def _read(self) -> tuple[ssl.SSLContext, datetime]:
        return self._files.read(), _expiry(self._files.certificate)


class NoCertificates:
    """No TLS: connections are in the clear."""

    context = None

    @contextlib.asynccontextmanager
    async def watched(self, _: Metrics) -> AsyncIterator[None]:
        """Watch nothing."""
        yield


NO_CERTIFICATES = NoCertificates()


def open_certificates(files: TlsFiles | None) -> Certificates | NoCertificates:
    """Return the certificates of these files.

    Raises:
        ValueError: they cannot be used.
    """
    return NO_CERTIFICATES if files is None else Certificates(files)


def ignore_sighup() -> None:
    """Have SIGHUP, which asks for a reading of the files, end nothing while they are not watched yet or any more."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _expiry(path: Path) -> datetime:
    try:
        return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(path.read_bytes()))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
