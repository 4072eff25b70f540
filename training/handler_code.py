"""Code that travels in the archives, read from the handlers' files: training and serving never import each other."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "handlers"


@cache
def handler_module(name: str) -> Any:
    """Return the module in that file of the handlers' folder, under a name of its own, loaded once.

    What training prepares and measures is then, line by line, what an archive of this tree serves.
    """
    alias = f"training_handler_{name}"
    spec = importlib.util.spec_from_file_location(alias, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    sys.path.insert(0, str(FOLDER))  # where these modules find each other, as in an archive
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
