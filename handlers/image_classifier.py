"""TorchServe handler of an image classifier: unpack the requests, decode their items, run the model, pack the answers.

Every archive holds this file, as its version's preprocessing, with the modules that it imports beside it. It needs
nothing of TorchServe but the context object that it is called with. TorchServe wants exactly one class in here.
"""

import array
import base64
import contextlib
import fcntl
import json
import os
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING or __package__:  # in the repository
    from handlers.batch_profile import BatchProfile, Kind
    from handlers.graph_forms import PACKAGE, Graph, load_graph
    from handlers.image_decoding import Pixels, brief, decode_item, decode_items, problem
    from handlers.packed_request import DEFAULT_TOP_K, unpack
    from handlers.ranking import rank
else:  # in an archive, where all files lie in one folder; never those of a repository that is on the path, too
    from batch_profile import BatchProfile, Kind
    from graph_forms import PACKAGE, Graph, load_graph
    from image_decoding import Pixels, brief, decode_item, decode_items, problem
    from packed_request import DEFAULT_TOP_K, unpack
    from ranking import rank

# TorchScript specialises its graph for each new shape during the first runs of it; see warm_up.
WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
WARM_UP_RUNS = 3
WARM_UP_SECONDS = 20.0
LOG_SECONDS = 2.0
# Many large images in one batch must not keep the worker until TorchServe takes it for dead.
DECODE_SECONDS = 10.0
ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def log_and_wait(message: str) -> None:
    """Print a line and wait until whoever reads this process' output has taken it.

    TorchServe closes that pipe as soon as it hears of a failed load, and with it went the reason.
    """
    print(message, file=sys.stderr, flush=True)
    unread = array.array("i", [0])
    deadline = time.monotonic() + LOG_SECONDS
    with contextlib.suppress(OSError, ValueError):  # not a pipe: a terminal, a file, a test's buffer
        while time.monotonic() < deadline and not fcntl.ioctl(sys.stderr.fileno(), termios.FIONREAD, unread):
            if not unread[0]:
                return
            time.sleep(0.01)


def serialise(answer: Mapping[str, Any]) -> bytes:
    """Return an answer as JSON."""
    return ENCODER.encode(answer).encode()


class ImageClassifier:
    """One loaded model version. TorchServe calls initialize once and handle for each request."""

    contract: dict[str, Any]
    model: Graph
    device: torch.device

    def initialize(self, context: Any) -> None:
        """Load, warm up and check the model that lies in the context's model_dir.

        Raises RuntimeError when the archive is not whole or the model does not give its contract's answers here; it
        is the one exception that TorchServe reports as a failed load.
        """
        try:
            self.load(context)
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            failure = f"The archive of {context.model_name} cannot be loaded: {brief(error)}"
            log_and_wait(failure)
            raise RuntimeError(failure) from error

    def load(self, context: Any) -> None:
        """Load, warm up and check."""
        folder = Path(context.system_properties["model_dir"])
        gpu_id = context.system_properties.get("gpu_id")
        self.contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
        # Quantized kernels exist for the CPU only, and packages are made for it.
        cpu_only = self.contract["precision"].startswith("int8") or self.contract.get("compile") == PACKAGE
        on_cpu = gpu_id is None or cpu_only
        self.device = torch.device("cpu" if on_cpu else f"cuda:{gpu_id}")
        graph = folder / context.manifest["model"]["serializedFile"]
        form = os.environ.get("TORCHGATE_GRAPH_FORM", "")
        self.model = load_graph(graph, self.contract, form, self.device, self.known_pixels())
        self.warm_up()
        self.check_self()

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[Any]:
        """Answer each row of data: a packed batch, a plain image, or a question for the contract."""
        return [self.answer(row, index, context) for index, row in enumerate(data)]

    def answer(self, row: Mapping[str, Any], index: int, context: Any) -> Any:
        """Answer one row; what is wrong with the whole of it is status 400."""
        if context.get_request_header(index, "describe") == "True":
            return self.describe()
        context.set_response_content_type(index, "application/json")
        try:
            items, options = unpack(row)
        except ValueError as error:
            answer: dict[str, Any] = {"error": problem("request_invalid", str(error))}
        else:
            kind = None if options is None else options.pop("profile")
            if options is not None and kind is not None:
                return self.predict_profiled(items, kind, **options)
            answer = self.answer_plain(items) if options is None else self.predict(items, **options)
        if "error" in answer or "code" in answer:
            context.set_response_status(code=400, phrase="Bad Request", idx=index)
        return serialise(answer)

    def answer_plain(self, items: Sequence[Any]) -> dict[str, Any]:
        """Answer a single image with names of classes."""
        (result,) = self.predict(items, DEFAULT_TOP_K, probabilities=False)["results"]
        if "error" in result:
            return dict(result["error"])
        classes = self.contract["classes"]
        top_k = [{"label": classes[class_index], "probability": value} for class_index, value in result["top_k"]]
        return {**top_k[0], "top_k": top_k}

    def predict_profiled(self, items: Sequence[Any], kind: Kind, top_k: int, probabilities: bool) -> bytes:
        """Answer as predict does, as JSON, with what torch's profiler saw beside it."""
        with BatchProfile(self.device, kind) as seen:
            answer = self.predict(items, top_k, probabilities, mark=seen.mark)
            with seen.mark("serialise"):
                body = serialise(answer)
        return body[:-1] + b',"profile":' + serialise(seen.document()) + b"}"

    def predict(
        self,
        items: Sequence[Any],
        top_k: int,
        probabilities: bool,
        mark: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> dict[str, Any]:
        """Answer each item, in order, with a result or an error; the model runs once, on the good ones.

        `mark` gets the name of each stage and returns what to enter for it.
        """
        started = time.perf_counter()
        with mark("decode"):
            decoded = decode_items(items, self.contract, DECODE_SECONDS)
        good = [pixels for pixels in decoded if not isinstance(pixels, dict)]
        decoded_at = time.perf_counter()
        answers: Iterator[dict[str, Any]] = iter(())
        if good:
            with mark("graph"):
                output = self.run(self.model.stack(good))
            with mark("rank"):
                answers = iter(rank(output.numpy(), top_k, probabilities))
        results = [{"error": entry} if isinstance(entry, dict) else next(answers) for entry in decoded]
        ended = time.perf_counter()
        decode_ms, compute_ms = (decoded_at - started) * 1e3, (ended - decoded_at) * 1e3
        return {"results": results, "timings_ms": {"decode": round(decode_ms, 3), "compute": round(compute_ms, 3)}}

    def run(self, batch: Pixels) -> torch.Tensor:
        """Run the model on uint8 [N, C, H, W]; the answer is float32 [N, num_classes] in CPU memory."""
        with torch.inference_mode():
            output: torch.Tensor = self.model(torch.from_numpy(batch).to(self.device))
            return output.cpu()

    def describe(self) -> dict[str, Any]:
        """Return the contract and what it runs on."""
        runtime = {
            "torch_version": torch.__version__,
            "num_threads": torch.get_num_threads(),
            "device": str(self.device),
            "pid": os.getpid(),
            "graph_forms": self.model.describe(),
        }
        return {**self.contract, "runtime": runtime}

    def known_pixels(self) -> list[Pixels]:
        """Return the self-check's images, and a gradient for a contract that has none."""
        size = self.contract["input"]
        shape = (size["channels"], size["height"], size["width"])
        decoded = [
            decode_item(base64.b64decode(case["image_b64"]), self.contract)
            for case in self.contract["self_check"]["cases"]
        ]
        gradient = np.arange(np.prod(shape), dtype=np.int64).astype(np.uint8).reshape(shape)
        return [gradient, *(pixels for pixels in decoded if not isinstance(pixels, dict))]

    def warm_up(self) -> None:
        """Run the batch sizes that are to come, so that the first callers do not pay for specialisation."""
        size = self.contract["input"]
        deadline = time.monotonic() + WARM_UP_SECONDS
        for num_items in WARM_UP_SIZES:
            if self.model.is_warm(num_items):
                continue
            batch = np.zeros((num_items, size["channels"], size["height"], size["width"]), np.uint8)
            for _ in range(WARM_UP_RUNS):
                self.run(batch)
                # Large models on slow machines: rather a slow first call than a load that times out.
                if time.monotonic() > deadline:
                    return

    def check_self(self) -> None:
        """Compare the answers to the contract's own cases, one by one, with what they were where it was exported."""
        check = self.contract["self_check"]
        for number, case in enumerate(check["cases"]):
            image = base64.b64decode(case["image_b64"])
            (result,) = self.predict([image], DEFAULT_TOP_K, probabilities=True)["results"]
            if "error" in result:
                raise RuntimeError(f"Self-check case {number} cannot be answered: {result['error']['message']}")
            expected, answered = np.array(case["probabilities"]), np.array(result["probabilities"])
            if expected.shape != answered.shape:
                raise RuntimeError(f"Self-check case {number}: {len(answered)} classes, expected {len(expected)}")
            difference = float(np.abs(expected - answered).max())
            if not difference <= check["tolerance"]:
                tolerance = f"tolerance {check['tolerance']:g}"
                raise RuntimeError(f"Self-check case {number} is off by {difference:.3g}, {tolerance}")
