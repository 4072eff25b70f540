"""How many files and sockets the process may have open."""

import logging
import resource

logger = logging.getLogger(__name__)

RESERVE = 256  # for files, databases, workers and the model server
LEAST = 16
MOST_WAITING = 4096


def raise_limit() -> None:
    """Let the process have as many open as the system allows it: its soft limit, often 1,024, is for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems name a hard limit that they do not grant
            logger.warning("the limit of open files stays at %d: %s", soft, error)


def most_waiting(most: int) -> int:
    """Return how many connections may wait to be opened, beside so many that are open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = MOST_WAITING if soft == resource.RLIM_INFINITY else soft - RESERVE - most
    return min(max(left, LEAST), MOST_WAITING)


def most_connections(wanted: int) -> int:
    """Return how many connections there may be: as wanted, or as many as the limit of open files leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft - RESERVE:
        return wanted
    most = max(soft - RESERVE, LEAST)
    logger.warning(
        "at most %d connections instead of TORCHGATE_MAX_CONNECTIONS=%d: the process may have %d files open; raise "
        "`ulimit -n`, LimitNOFILE of systemd or `ulimits` of compose",
        most,
        wanted,
        soft,
    )
    return most
