"""`python -m training STAGE`: arguments and environment in, one clear line and an exit code out."""

import os
import sys

from training.cli import dispatch
from training.errors import TrainingError


def main() -> int:
    """Run one stage; return 0, or the exit code of what stopped it."""
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
    sys.exit(main())
