"""What torch.compile needs, which not every machine has."""

import os
import shutil


def missing_compiler() -> str:
    """Return why torch.compile cannot be measured here; nothing where it can."""
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"no C++ compiler ({compiler}) here"
