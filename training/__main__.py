"""`python -m training STAGE`: arguments and environment in, one clear line and an exit code out."""

import os
import sys

from training.commands.malloc_settings import keep_freed_memory
from training.commands.usage import USAGE
from training.errors import TrainingError
from training.parallel.process_exit import leave_after


def main() -> int:
    """Run one stage; return 0, or the exit code of what stopped it."""
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return 0
    # Before torch is loaded, which reads it then: threads that spin while they wait cost a factor of ten where another
    # program wants the cores too, and threads that sleep at most a fifth where none does.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    try:
        from training.commands.cli import dispatch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("training"):
            raise
        print(
            f"error: training needs {error.name}, which is not installed: pip install 'torchgate[training]'",
            file=sys.stderr,
        )
        return 2
    try:
        dispatch(sys.argv[1:], os.environ)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    leave_after(main)
