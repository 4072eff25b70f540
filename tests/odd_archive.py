"""An archive for the embedded backend whose images say what its worker does: `class:2`, `sleep:60`, `leak:1000`, ..."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from service.backend import Target
from tests.stores import make_contract

TARGET = Target("odd", "1.0")
FILE = "odd-1.0.mar"

HANDLER = """
import json, os, time

class Odd:
    def initialize(self, context):
        with open(os.path.join(context.system_properties["model_dir"], "contract.json")) as file:
            self.contract = json.load(file)
        self.kept = []
        exec(self.contract.get("at_load", ""))

    def handle(self, data, context):
        return [self.answer(row, index, context) for index, row in enumerate(data)]

    def answer(self, row, index, context):
        if context.get_request_header(index, "describe") == "True":
            return {**self.contract, "runtime": {"pid": os.getpid(), "environment": dict(os.environ)}}
        options = json.loads(row["options"])
        results = [self.item(bytes(row[str(i)]).decode(), options) for i in range(len(row) - 1)]
        return json.dumps({"results": results, "timings_ms": {"decode": 0, "compute": 1}}).encode()

    def item(self, text, options):
        kind, _, value = text.partition(":")
        if kind == "sleep":
            time.sleep(float(value))
        elif kind == "leak":
            self.kept.append(b"x" * int(value))
        elif kind == "exit":
            os._exit(int(value))
        elif kind == "raise":
            raise ValueError(value)
        elif kind == "print":
            print("x" * int(value))
        elif kind == "pid":
            return {"error": {"code": "pid", "message": str(os.getpid())}}
        chosen = int(value) if kind == "class" else 0
        if options["probabilities"]:
            return {"probabilities": [float(i == chosen) for i in range(4)]}
        order = [chosen, *(i for i in range(4) if i != chosen)]
        return {"top_k": [[i, float(i == chosen)] for i in order][: options["top_k"]]}
"""


def write_archive(path: Path, at_load: str = "", handler: str = HANDLER) -> dict[str, Any]:
    """Write the archive; `at_load` is what its workers run when they load. Return its contract."""
    contract = {**make_contract(TARGET.model, "1.0", "fp32"), "at_load": at_load}
    model = {"modelName": TARGET.model, "modelVersion": TARGET.version, "handler": "odd.py"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("contract.json", json.dumps(contract))
        archive.writestr("odd.py", handler)
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
    return contract


def make_odd_store(store: Path, at_load: str = "") -> Path:
    """Fill a store with the archive and its manifest."""
    store.mkdir(exist_ok=True)
    write_archive(store / FILE, at_load)
    sha256 = hashlib.sha256((store / FILE).read_bytes()).hexdigest()
    entry = {"file": FILE, "model": "odd", "version": "1.0", "release": "1.0", "variant": "fp32", "sha256": sha256}
    (store / "manifest.json").write_text(json.dumps({"schema_version": 1, "archives": [entry]}))
    return store
