"""One of several processes of a gateway: `python -m service.member LISTENER HUB`, two open sockets' numbers."""

import socket
import sys

from service.__main__ import serve
from service.settings import Settings


def main() -> None:
    """Serve on a socket that all share, until the process above says stop or is gone."""
    listener, hub = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with listener, hub:
        serve(Settings(), listener, hub)


if __name__ == "__main__":
    main()
