"""What happens to images that cannot be read: all of them are named, then they are left out or end the work."""

from collections.abc import Mapping

from training.errors import DataError
from training.options.config import Broken


def report_broken(reasons: Mapping[str, str], broken: Broken) -> None:
    """Print each broken image, by name and with the reason, if they are to be skipped; raise DataError if not."""
    if not reasons:
        return
    lines = [reason if name in reason else f"{name}: {reason}" for name, reason in reasons.items()]
    if broken == "fail":
        count = "1 image" if len(lines) == 1 else f"{len(lines)} images"
        raise DataError(f"{count} cannot be used (--broken skip leaves them out):\n  " + "\n  ".join(lines))
    print(f"left out, {len(lines)} broken:", *lines, sep="\n  ", flush=True)
