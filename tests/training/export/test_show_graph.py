"""`python -m training graph` shows what was exported and what became of it."""

import re
import shutil
import sys

import pytest

from training.__main__ import main
from training.artifacts import Run, write_json
from training.export.export import load_graph_card
from training.export.show_graph import graphs, operators


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["training", "graph", *args])
    code = main()
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_batch_norm_is_folded_and_the_operators_are_counted(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = shown(monkeypatch, capsys, "--run", str(exported.folder), "--batch-size", "2")
    assert code == 0
    for name in ("exported", "frozen", "optimized", "as run"):
        assert f"\n{name}:\ngraph(" in f"\n{text}"
    rows = {row.split(" | ")[0].strip("| "): re.findall(r"\d+", row.split(" | ", 1)[1]) for row in text.splitlines()
            if row.startswith("| ")}  # fmt: skip
    exported_norms, frozen_norms, *_ = map(int, rows["aten::batch_norm"])
    assert (exported_norms, frozen_norms) == (19, 0)
    assert int(rows["all"][1]) < int(rows["all"][0])
    exported_ones, frozen_ones, optimized_ones, _ = map(int, rows["prim::mkldnn_convolution"])
    assert (exported_ones, frozen_ones) == (0, 0) < (0, optimized_ones)


def test_another_variant_has_other_operators(exported: Run) -> None:
    found = graphs(exported, "int8-static", batch_size=1)
    assert operators(found["exported"])["quantized::linear"] == 1
    # On a CPU the executor fuses nothing, but it puts constants in another order: it is not what it was given.
    assert operators(found["as run"]) == operators(found["frozen"])
    assert str(found["as run"]) != str(found["frozen"])


@pytest.mark.parametrize(
    ("args", "message"),
    [(["--batch-size", "0"], "--batch-size is 0; allowed is 1 to 1024"), (["--variant", "fp16"], "int8-static")],
)
def test_mistakes_are_named(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        shown(monkeypatch, capsys, "--run", str(exported.folder), *args)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_machine_code_has_no_graph(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {**vars(load_graph_card(exported, "fp32"))}
    document = {**card, "compile": "aoti", "parity": vars(card["parity"]), "optimize": _plain(card["optimize"])}
    write_json(exported.graph_card("aoti"), document)
    try:
        code, _, error = shown(monkeypatch, capsys, "--run", str(exported.folder), "--variant", "aoti")
    finally:
        shutil.rmtree(exported.graph_card("aoti").parent)
    assert code == 2
    assert error == "error: --variant is aoti, which is machine code; allowed are the others, of TorchScript\n"


def _plain(optimize: object) -> dict[str, object]:
    return {**vars(optimize), "forms": [vars(form) for form in vars(optimize)["forms"]]}
