"""The server: HTTP/1.1 on a socket, and what a connection may cost."""
