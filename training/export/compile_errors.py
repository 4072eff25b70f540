"""What a compiler of torch's says of a model, as one line: where it is in the source, and what to write instead."""

import linecache
import re
from pathlib import Path

import torch

from training.errors import CompileError

PLACE = re.compile(r'File "([^"]+)", line (\d+)')
TORCH = str(Path(torch.__file__).parent)
DIFFERENT_CODE = "write it with what TorchScript knows, or give it to a part without control flow and --compile mixed"
# The first pattern that is found in what was said decides.
ADVICE: tuple[tuple[str, str], ...] = (
    ("variable number of arguments", "name each argument, with its type: def forward(self, x: Tensor, scale: float)"),
    ("try blocks", "test beforehand for what may fail, and raise; nothing in a graph can catch"),
    ("Lambda", "define a function with typed arguments beside the module"),
    (
        "Could not match type|must have entries|failed to convert Python type|empty (list|dict)",
        "say what the container holds: sizes: list[int] = [], or in the class body table: dict[str, Tensor]",
    ),
    ("previously had type NoneType", "say that it may be None, y: Tensor | None = None, and assert that it is not"),
    ("is not defined in the", "assign it before the branch, or in every branch of it"),
    (r"integer literal for index", "go through the layers in their order: for layer in self.layers"),
    ("(?i)numpy", "stay in torch: what NumPy does is not recorded"),
    (
        "Python (boolean|integer|float|number|list|index)|traced",
        "choose with torch.where(condition, a, b), or keep the branch with --compile script or mixed",
    ),
    (
        "data-dependent|DataDependent",
        "choose with torch.where(condition, a, b); the branch itself can be kept by TorchScript alone: "
        "--compile script or mixed, without --aoti and --onnx",
    ),
)


def compile_error(compiler: str, said: str, place: tuple[str, int] | None = None) -> CompileError:
    """Return the error for what the compiler said; the first line of the model's own code in it is the culprit's."""
    found = ((name, int(number)) for name, number in PLACE.findall(said) if not name.startswith(TORCH))
    file, line = place or next(found, ("", 0))
    complaint = next((text.strip() for text in said.splitlines() if _is_complaint(text)), "it does not say why")
    advice = next((advice for pattern, advice in ADVICE if re.search(pattern, said)), DIFFERENT_CODE)
    source = linecache.getline(file, line).strip()
    where = f"{file}:{line}: `{source}`: " if file else ""
    return CompileError(f"{where}{compiler} cannot compile this: {complaint.rstrip(':.')}; instead, {advice}")


def _is_complaint(text: str) -> bool:
    """Tell whether a line is a sentence: not empty, not a signature of an operator, not a place."""
    return bool(re.search(r"\w", text)) and not text.startswith("aten::") and not PLACE.search(text)
