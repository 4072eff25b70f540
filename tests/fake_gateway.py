"""`torchgate` as a process of its own over the fake backend, quick to start: `python -m tests.fake_gateway serve`.

The store in TORCHGATE_MODEL_STORE is one of tests.stores. The image `wait` blocks the event loop for ever, and `spin`
does it in C code that holds Python's lock.
"""

import json
import re
import time
import zipfile
from collections.abc import Sequence
from functools import partial

from service import __main__ as command
from service import app as composition
from service.config.settings import Settings
from service.domain.backend import BatchAnswer, BatchOptions, Target
from tests.fake_backend import FakeBackend, FakeControl


class BlockingBackend(FakeBackend):
    """The fake, with images that block the event loop."""

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        if items[0] == b"wait":
            time.sleep(3600)  # noqa: ASYNC251 - it is to block
        elif items[0] == b"spin":
            re.match("(a+)+b", "a" * 64)
        return await super().predict(target, items, options, timeout_seconds)


def main() -> None:
    """Run the command line."""
    contracts = {}
    for path in Settings().model_store.glob("*.mar"):
        with zipfile.ZipFile(path) as archive:
            contract = json.loads(archive.read("contract.json"))
        contracts[Target(contract["model"], contract["version"])] = contract
    backend, control = BlockingBackend(), FakeControl(contracts)
    # The command composes its application by this name; only what lies behind the seam is exchanged.
    vars(composition)["create_app"] = partial(composition.create_app, backend=backend, control=control)
    command.main()


if __name__ == "__main__":
    main()
