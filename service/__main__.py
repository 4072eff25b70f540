"""The `torchgate` command: settings, then the application, then uvicorn."""

import argparse
import gc
import logging
import math
import os
import socket
import sys

import uvicorn
from pydantic import ValidationError

from service.cli.commands import add_verbs, run
from service.config.environment import env_name
from service.config.settings import SECRETS, Settings, explain
from service.config.variables import require_known
from service.telemetry.access_log import configure_logging

logger = logging.getLogger(__name__)

BACKLOG = 2048


def main() -> None:
    """Run the command line; a wrong setting or a taken port ends it with status 2 and one line per fault."""
    parser = argparse.ArgumentParser(prog="torchgate", description="A gateway for image classifiers on TorchServe.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("serve", help="run the gateway until SIGTERM or Ctrl-C")
    verbs.add_parser("check", help="check the settings, the state's place and that the port is free, then stop")
    verbs.add_parser("settings", help="list every setting with its default and its value now")
    add_verbs(verbs)
    options = parser.parse_args()
    verb = options.verb
    if "call" in options:
        sys.exit(run(options))
    try:
        require_known(os.environ)
        settings = Settings()
    except ValidationError as error:
        sys.exit(_complain(explain(error)))
    except ValueError as error:
        sys.exit(_complain(str(error)))
    if verb == "settings":
        for name, field in Settings.model_fields.items():
            value = getattr(settings, name)
            shown = "(set)" if name in SECRETS and value else value
            print(f"{env_name(name)}={shown}  (default {field.default}) {field.description}")
        return
    from service.persistence.engines.place import require_place  # noqa: PLC0415 - the other verbs need no database

    try:
        require_place(settings)
    except ValueError as error:
        sys.exit(_complain(str(error)))
    try:
        listener = _listen(settings)
    except (OSError, TypeError, ValueError) as error:  # for some host names socket raises no OSError
        place = f"{settings.host}:{settings.port}"
        reason = getattr(error, "strerror", None) or error
        sys.exit(_complain(f"cannot listen on {place} (TORCHGATE_HOST, TORCHGATE_PORT): {reason}"))
    with listener:
        if verb == "serve":
            serve(settings, listener)


def serve(settings: Settings, listener: socket.socket) -> None:
    """Answer requests on `listener` until a signal stops it, then finish those in progress."""
    from service.app import create_app  # noqa: PLC0415
    from service.http.server.protocol import BoundedHttpProtocol  # noqa: PLC0415 - the other verbs need none of it

    configure_logging(settings.log_level)
    host, port = listener.getsockname()[:2]
    logger.info("torchgate listens on http://%s:%d", host, port, extra={"host": host, "port": port})
    config = uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )
    server = uvicorn.Server(config)
    # The imported modules stay. Without freeze, each full collection would scan them and delay requests by 0.1 s.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)


def _complain(text: str) -> int:
    print(f"torchgate: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
