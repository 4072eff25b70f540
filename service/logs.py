"""JSON lines on standard error: one object per line, times in UTC."""

import logging
import logging.config


def configure_logging(level: str) -> None:
    """Send every logger's lines of at least `level` to standard error as JSON."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "json": {
                    "()": "pythonjsonlogger.json.JsonFormatter",
                    "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
                    "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
                    "datefmt": "%Y-%m-%dT%H:%M:%S%z",
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"level": level.upper(), "handlers": ["stderr"]},
            # Libraries speak up only when something is wrong; one line per request is our own.
            "loggers": {name: {"level": "WARNING"} for name in ("httpx", "httpcore", "asyncio", "uvicorn")},
        }
    )
