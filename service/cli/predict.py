"""The verb `torchgate predict`."""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from torchgate_client import Answer, GatewayProblem, Prediction, TorchgateError, Unreachable

from service.cli.gateway import KEY_VARIABLE, Gateway
from service.cli.tables import printable
from service.cli.verbs import add_verb

STANDARD_INPUT = "-"
LABEL_WIDTH = 10


def add_predict_verb(verbs: Any) -> None:
    """Add the verb."""
    help_text = "classify images: file, class, probability, version, and milliseconds until the answer"
    predict = add_verb(verbs, "predict", help_text, _predict, _nothing)
    predict.epilog = f"Where predictions need a key, set {KEY_VARIABLE}."
    predict.add_argument("files", nargs="+", metavar="FILE", help="image to send; - is standard input")
    predict.add_argument("--model", help="model that answers; the default model if not given")
    predict.add_argument("--version", help="version that answers; the traffic weights choose one if not given")
    predict.add_argument("--label", help="label of the version that answers")
    predict.add_argument("--top-k", type=int, metavar="K", help="list the K most probable classes of each image")


def _predict(gateway: Gateway, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a document for each file; unless --json is given, a line is printed as soon as its answer is there."""
    documents = []
    width = max(len(name) for name in options.files)
    gone: Unreachable | None = None
    for name in options.files:
        started = time.perf_counter()
        try:
            if gone is not None:
                raise gone  # the other files are not tried, for each would wait as long
            image = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
            answer = gateway.caller.predict(
                image, model=options.model, version=options.version, label=options.label, top_k=options.top_k
            )
        except (OSError, TorchgateError) as error:
            gone = error if isinstance(error, Unreachable) else None
            options.status = 1
            documents.append({"file": name, "error": _error(error)})
            print(printable(f"torchgate: {name}: {_told(error)}"), file=sys.stderr)
            continue
        milliseconds = (time.perf_counter() - started) * 1000
        documents.append({"file": name, **_document(answer)})
        if not options.json:
            print(_lines(name.ljust(width), answer, milliseconds, options.top_k or 1), flush=True)
    return documents


def _lines(name: str, answer: Answer, milliseconds: float, top_k: int) -> str:
    """Return the answer's line, and one for each further class that was asked for."""
    best, *others = answer.only.top_k[:top_k] or [answer.only]
    target = f"{answer.model} {answer.version}"
    lines = [f"{name}  {best.label:<{LABEL_WIDTH}}  {best.probability:>7.2%}  {target}  {milliseconds:.1f} ms"]
    lines += [f"{'':{len(name)}}  {each.label:<{LABEL_WIDTH}}  {each.probability:>7.2%}" for each in others]
    return "\n".join(map(printable, lines))


def _document(answer: Answer) -> dict[str, Any]:
    """Return the API's answer."""
    predictions = [
        dataclasses.asdict(each) if isinstance(each, Prediction) else {"error": dataclasses.asdict(each)}
        for each in answer.predictions
    ]
    return {"id": answer.id, "model": answer.model, "version": answer.version, "predictions": predictions}


def _error(error: OSError | TorchgateError) -> dict[str, str]:
    """Return an error in the form that the API gives to an image that has no prediction."""
    if isinstance(error, GatewayProblem):
        return {"code": error.code, "message": error.detail}
    code = "file_unreadable" if isinstance(error, OSError) else "gateway_unreachable"
    return {"code": code, "message": _told(error)}


def _told(error: OSError | TorchgateError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _nothing(_: Any) -> str:
    return ""  # every line is printed already
