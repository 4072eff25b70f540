"""The two servers that edge.py measures, `python -m benchmarks.costs.edge_server bare|gateway STORE PORT`.

Both run through `service.__main__.serve`, hence under the very same uvicorn: the gateway with a backend that answers
at once, and the least that such a server can do, an ASGI application that reads the body and writes the same answer.
"""

import base64
import json
import socket
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from service import app as composition
from service.__main__ import serve
from service.config.settings import Settings
from service.domain.backend import (
    BatchAnswer,
    BatchOptions,
    ProbabilityVector,
    Ranking,
    Target,
    VerifiedArchive,
    VersionStatus,
)
from service.process.entrance import OwnSockets
from service.process.listening import BACKLOG, PUBLIC, ListeningSocket


class _InstantBackend:
    """A Backend and a ModelControl in one: it has loaded what it is asked for, and answers every batch at once.

    A self-check gets the answer that it expects; any other image gets the same ranking.
    """

    def __init__(self, contract: Mapping[str, Any]) -> None:
        cases = contract["self_check"]["cases"]
        self._expected = {base64.b64decode(case["image_b64"]): case["probabilities"] for case in cases}
        self._ranking = Ranking([(index, 0.2) for index in range(5)])
        self._contract = contract
        self._loaded: dict[Target, int] = {}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def num_slots(self, num_workers: int) -> int:
        return num_workers + 1

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        if options.probabilities:
            return BatchAnswer([ProbabilityVector(self._expected[item]) for item in items], 0.0, 0.0)
        return BatchAnswer([self._ranking] * len(items), 0.0, 0.0)

    async def survey(self) -> Mapping[Target, VersionStatus]:
        return {target: VersionStatus(number, {"ready": number}, 0) for target, number in self._loaded.items()}

    async def load(self, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        self._loaded[target] = num_workers

    async def unload(self, target: Target) -> None:
        del self._loaded[target]

    async def scale(self, target: Target, num_workers: int) -> None:
        self._loaded[target] = num_workers

    async def contract(self, target: Target) -> Mapping[str, Any]:
        return {**self._contract, "runtime": {"pid": 1}}


def bare_application(answer: bytes) -> Any:
    """Return an ASGI application that reads the body and writes `answer`."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return application


def bare_answer(contract: Mapping[str, Any]) -> bytes:
    """Return what the gateway answers, as long and of the same form."""
    top_k = [{"label": name, "probability": 0.2} for name in contract["classes"][:5]]
    document = {"id": "0" * 32, "model": contract["model"], "version": contract["version"]}
    return json.dumps({**document, "predictions": [{**top_k[0], "top_k": top_k}]}, separators=(",", ":")).encode()


def main() -> None:
    """Serve until SIGTERM."""
    kind, store, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    (archive,) = store.glob("*.mar")
    with zipfile.ZipFile(archive) as packed:
        contract = json.loads(packed.read("contract.json"))
    backend = _InstantBackend(contract)
    # serve() composes its application by this name; only what lies behind the seam is exchanged.
    vars(composition)["create_app"] = (
        partial(composition.create_app, backend=backend, control=backend)
        if kind == "gateway"
        else lambda *_, **__: bare_application(bare_answer(contract))
    )
    settings = Settings(model_store=store, port=port, log_level="warning")
    with socket.create_server(("127.0.0.1", port), backlog=BACKLOG) as listener:
        serve(settings, OwnSockets([ListeningSocket(PUBLIC, listener)]))


if __name__ == "__main__":
    main()
