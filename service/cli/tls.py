"""How the command line checks a gateway's certificate, and which one of its own it shows."""

import os
import ssl

CA_VARIABLE = "TORCHGATE_CA_FILE"
CERTIFICATE_VARIABLE = "TORCHGATE_CLIENT_CERT_FILE"
KEY_VARIABLE = "TORCHGATE_CLIENT_KEY_FILE"


def client_context() -> ssl.SSLContext:
    """Return what a connection to a gateway is made with; ValueError names the variable whose file cannot be used."""
    ca, certificate, key = (os.environ.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise ValueError(f"{CA_VARIABLE}={ca}: {error}; give the CA's certificates as a PEM file") from error
    if certificate is None:
        return context
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        given = f"{CERTIFICATE_VARIABLE}={certificate}, {KEY_VARIABLE}={key or ''}"
        raise ValueError(f"{given}: {error}; give a certificate and its key, as one PEM file or two") from error
    return context
