"""Certificates for tests of TLS: a CA, a server's files and clients that show one."""

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


@dataclass
class Files:
    """A server's files and the CA that clients check its certificate with."""

    folder: Path
    ca: trustme.CA

    @property
    def certificate(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def env(self) -> dict[str, str]:
        return {"TORCHGATE_TLS_CERT_FILE": str(self.certificate), "TORCHGATE_TLS_KEY_FILE": str(self.key)}

    @property
    def trust(self) -> ssl.SSLContext:
        """What a client checks the certificate with."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context

    def trust_as(self, name: str) -> ssl.SSLContext:
        """The same for a client that shows a certificate of this CA."""
        context = self.trust
        self.ca.issue_cert(f"{name}@example.org", common_name=name, organization_name="operators").configure_cert(
            context
        )
        return context

    def trust_without_subject(self, uri: str) -> ssl.SSLContext:
        """The same for a client whose certificate has no subject and one alternative name, as in a service mesh."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        ca = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        ca_key = load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        certificate = (
            x509.CertificateBuilder(ca.subject, x509.Name([]), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
            .sign(ca_key, SHA256())
        )
        path = self.folder / "mesh.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        context = self.trust
        context.load_cert_chain(path)
        return context

    def write_ca(self) -> Path:
        """Return a file with the CA's certificate."""
        path = self.folder / "ca.pem"
        path.write_bytes(self.ca.cert_pem.bytes())
        return path

    def issue(self, days: int = 90) -> int:
        """Replace the files by a new certificate; return its serial number."""
        expiry = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(days=days)
        leaf = self.ca.issue_cert("127.0.0.1", "gateway.test", not_after=expiry)
        replace(self.key, leaf.private_key_pem.bytes())
        replace(self.certificate, b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return serial_in(self.certificate.read_bytes())


def replace(path: Path, content: bytes) -> None:
    """Put a file in the place of another in one step, as certificate managers do."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def serial_in(pem: bytes) -> int:
    return x509.load_pem_x509_certificates(pem)[0].serial_number
