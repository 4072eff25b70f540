"""TLS: the certificates, and the handshakes."""
