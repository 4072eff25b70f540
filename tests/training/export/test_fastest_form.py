"""The forms that are recorded are the fastest ones, give the portable one's answers, and are those of the handler."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers import graph_forms, packed_request
from training.archive.contract import build_contract
from training.artifacts import VARIANTS, Run, Variant
from training.data.dataset import load_split
from training.export import fastest_form as forms
from training.export.export import load_graph_card
from training.export.fastest_form import (
    BATCH_SIZES,
    FORMS,
    GraphForm,
    ServedForm,
    apply_form,
    as_served,
    fastest_forms,
    find_fastest,
)
from training.export.graph_file import load_compiled
from training.options.config import MOST_IMAGES

SLOW = [10.0] * 6


def test_the_handler_knows_the_same_forms() -> None:
    assert tuple(graph_forms.FORMS) == FORMS


def test_the_handler_takes_as_many_images_at_once_as_a_graph_is_made_for() -> None:
    assert packed_request.MAX_ITEMS == MOST_IMAGES


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_contract_says_what_was_measured_and_the_handler_reads_it(exported: Run, variant: Variant) -> None:
    contract = json.loads(json.dumps(build_contract(exported, variant, model="toy", release="1.0")))
    optimize = contract["optimize"]
    assert optimize["num_threads"] == 1
    assert optimize["batch_sizes"] == [1, 2, 4, 8, 16, 32]
    assert "portable" in optimize["median_ms"]
    for times in optimize["median_ms"].values():
        assert len(times) == 6
        assert min(times) > 0
    choices = graph_forms.read_choices(optimize)
    assert [(each.form, each.max_batch_size) for each in choices] == [
        (each.form, each.max_batch_size) for each in load_graph_card(exported, variant).optimize.forms
    ]


def test_each_batch_is_answered_by_the_form_for_its_size(exported: Run) -> None:
    images, _ = load_split(exported, "test")
    path, variant = exported.graph("fp32"), load_compiled(exported.graph("fp32"))
    measured = load_graph_card(exported, "fp32").optimize
    both = forms.Optimize(
        [ServedForm("frozen", 4), ServedForm("optimized", None)], 1, measured.processor, measured.batch_sizes, {}
    )
    served = as_served(path, both)
    with torch.inference_mode():
        for size in (1, 4, 5, 32):
            torch.testing.assert_close(served(images[:size]), variant(images[:size]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("median_ms", "expected"),
    [
        ({"portable": SLOW}, [ServedForm("portable", None)]),
        ({"portable": SLOW, "frozen": [9.9] * 6}, [ServedForm("portable", None)]),
        ({"portable": SLOW, "frozen": [9.0] * 6}, [ServedForm("frozen", None)]),
        (
            {"portable": SLOW, "frozen": [5.0] * 3 + [9.0] * 3, "optimized": [9.0] * 3 + [5.0] * 3},
            [ServedForm("frozen", 4), ServedForm("optimized", None)],
        ),
        (
            {"portable": [5.0] + [9.0] * 5, "optimized": [9.0] + [5.0] * 5},
            [
                ServedForm("portable", 1),
                ServedForm("optimized", None),
            ],
        ),
        ({"portable": SLOW, "frozen": [5.0] * 6, "optimized": [4.9] + [6.0] * 5}, [ServedForm("frozen", None)]),
    ],
)
def test_the_least_that_is_fast_is_chosen(median_ms: Any, expected: list[ServedForm]) -> None:
    assert fastest_forms(median_ms) == expected


def test_without_its_compiler_there_is_no_fused_form(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(enabled: bool) -> None:
        raise AttributeError("module 'torch._C' has no attribute '_jit_set_llga_enabled'")

    monkeypatch.setattr(torch.jit, "enable_onednn_fusion", missing)
    monkeypatch.setattr(forms, "SECONDS_PER_BATCH_SIZE", 0.0)
    images, _ = load_split(exported, "validation")
    assert "fused" not in find_fastest(Path(exported.graph("fp32")), images).median_ms
    assert "fp32: no form fused: module 'torch._C' has no attribute" in capsys.readouterr().out


def test_forms_that_cannot_be_made_or_deviate_are_left_out(
    exported: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def apply(graph: Any, form: GraphForm) -> Any:
        match form:
            case "frozen":
                raise RuntimeError("no such kernel")
            case "optimized":
                return lambda batch: graph(batch) + 1e-3
            case _:
                return apply_form(graph, form)

    monkeypatch.setattr(forms, "apply_form", apply)
    monkeypatch.setattr(forms, "SECONDS_PER_BATCH_SIZE", 0.0)
    images, _ = load_split(exported, "validation")
    found = find_fastest(Path(exported.graph("fp32")), images)
    assert set(found.median_ms) == {"portable", "frozen-channels-last", "optimized-channels-last", "fused"}
    printed = capsys.readouterr().out
    assert "fp32: no form frozen: no such kernel" in printed
    assert "fp32: no form optimized, it is off by 0.001" in printed
    assert found.batch_sizes == list(BATCH_SIZES)
