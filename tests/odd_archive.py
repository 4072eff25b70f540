"""An archive for the embedded backend whose images say what its worker does: `class:2`, `sleep:60`, `leak:1000`, ..."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from service.domain.backend import Target
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
        self.header = lambda name: context.get_request_header(index, name)
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
        elif kind == "header":
            return {"error": {"code": "header", "message": str(self.header(value))}}
        chosen = int(value) if kind == "class" else 0
        if options["probabilities"]:
            return {"probabilities": [float(i == chosen) for i in range(4)]}
        order = [chosen, *(i for i in range(4) if i != chosen)]
        return {"top_k": [[i, float(i == chosen)] for i in order][: options["top_k"]]}
"""


# What a version's workers may run when they load, to be worse than the others once they have passed their self-check.
WORSE = """
def item(text, options, whole=self.item):
    if options["probabilities"]:
        return whole(text, options)
    {what}
self.item = item
"""
SLOW = WORSE.format(what="time.sleep(0.3); return whole(text, options)")
FAILING = WORSE.format(what="raise ValueError('this version is broken')")
SHUFFLED = WORSE.format(
    what="kind, _, value = text.partition(':'); return whole(f'{kind}:{(int(value) + 1) % 4}', options)"
)


def write_archive(path: Path, at_load: str = "", handler: str = HANDLER, version: str = "1.0") -> dict[str, Any]:
    """Write the archive; `at_load` is what its workers run when they load. Return its contract."""
    contract = {**make_contract(TARGET.model, version, "fp32"), "at_load": at_load}
    model = {"modelName": TARGET.model, "modelVersion": version, "handler": "odd.py"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("contract.json", json.dumps(contract))
        archive.writestr("odd.py", handler)
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
    return contract


def make_odd_store(store: Path, at_load: str = "", **others: str) -> Path:
    """Fill a store with the archive and its manifest; of `others`, v1_1="..." is what the release 1.1 runs at load."""
    store.mkdir(exist_ok=True)
    entries = []
    for version, runs in {
        "1.0": at_load,
        **{name[1:].replace("_", "."): runs for name, runs in others.items()},
    }.items():
        file = f"odd-{version}.mar"
        write_archive(store / file, runs, version=version)
        sha256 = hashlib.sha256((store / file).read_bytes()).hexdigest()
        release = {"version": version, "release": version, "variant": "fp32"}
        entries.append({"file": file, "model": "odd", **release, "sha256": sha256})
    (store / "manifest.json").write_text(json.dumps({"schema_version": 1, "archives": entries}))
    return store
