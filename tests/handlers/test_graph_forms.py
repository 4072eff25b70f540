"""Forms of a graph: applied where they hold parity, chosen by batch size, never a reason not to load."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from handlers import graph_forms
from handlers.graph_forms import FORMS, Choice, forms_to_use, load_graph, read_choices
from handlers.image_classifier import ImageClassifier
from tests import images
from tests.handlers.archives import checked_contract, toy_contract, toy_graph, write_model_folder
from tests.handlers.context import load

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
FORM_NAMES = tuple(FORMS)
OPTIMIZED = tuple(form for form in FORMS if form != "portable")


def optimize(*forms: tuple[str, int | None]) -> dict[str, Any]:
    return {"forms": [{"form": form, "max_batch_size": bound} for form, bound in forms]}


def loaded(tmp_path: Path, *forms: tuple[str, int | None], graph: Any = None) -> ImageClassifier:
    return load(write_model_folder(tmp_path, {**checked_contract(), "optimize": optimize(*forms)}, graph))


def used(handler: ImageClassifier) -> list[tuple[str, int | None]]:
    runtime = handler.describe()["runtime"]["graph_forms"]
    return [(each["form"], each["max_batch_size"]) for each in runtime]


def batch(num_items: int) -> npt.NDArray[np.uint8]:
    return np.stack([images.pattern(seed=seed).transpose(2, 0, 1) for seed in range(num_items)])


@pytest.mark.parametrize("form", FORM_NAMES)
def test_every_form_gives_the_portable_ones_answers(tmp_path: Path, form: str) -> None:
    portable, handler = load(write_model_folder(tmp_path / "portable")), loaded(tmp_path / "form", (form, None))
    assert used(handler) == [(form, None)]
    for num_items in (1, 2, 5, 33):
        difference = (handler.run(batch(num_items)) - portable.run(batch(num_items))).abs().max()
        assert float(difference) <= 1e-6


@pytest.mark.parametrize("form", FORM_NAMES)
def test_the_same_batch_is_the_same_to_the_bit_however_its_images_lie_in_memory(tmp_path: Path, form: str) -> None:
    """On first and later calls, loaded twice, decoded from a file or sent as an array."""
    first, second = (loaded(tmp_path / name, (form, None)) for name in ("first", "second"))
    for num_items in (1, 3, 12):  # sizes that no warm-up has run, too
        decoded = [images.pattern(seed=seed).transpose(2, 0, 1) for seed in range(num_items)]
        sent = [np.ascontiguousarray(item) for item in decoded]
        batches = [np.stack(decoded), np.stack(sent), first.model.stack(decoded), first.model.stack(sent)]
        expected = first.run(batches[0])
        assert 0.2 < float(expected.max()) < 0.99, "rounding would not be seen"
        for handler in (first, first, second):
            for each in batches:
                assert torch.equal(handler.run(each), expected)


def test_the_size_of_a_batch_chooses_the_form(tmp_path: Path) -> None:
    handler = loaded(tmp_path, ("frozen-channels-last", 4), ("optimized", None))
    assert used(handler) == [("frozen-channels-last", 4), ("optimized", None)]
    small, large = handler.model.forms
    with torch.inference_mode():
        for num_items, form in ((1, small), (4, small), (5, large), (40, large)):
            pixels = torch.from_numpy(batch(num_items))
            assert torch.equal(handler.model(pixels), form(pixels))
            assert handler.model._form(num_items) is form


def test_batches_are_stacked_in_the_layout_that_their_form_wants(tmp_path: Path) -> None:
    handler = loaded(tmp_path, ("frozen-channels-last", 4), ("frozen", None))
    for num_items, layout in ((3, torch.channels_last), (5, torch.contiguous_format)):
        stacked = handler.model.stack(list(batch(num_items)))
        assert np.array_equal(stacked, batch(num_items))
        assert torch.from_numpy(stacked).is_contiguous(memory_format=layout)


def test_the_fused_form_is_compiled_when_it_is_loaded_and_takes_other_batches_in_pieces(tmp_path: Path) -> None:
    handler, portable = loaded(tmp_path / "a", ("fused", None)), load(write_model_folder(tmp_path / "b"))
    (fused,) = (form.graph for form in handler.model.forms)
    compiled = dict(fused._compiled)
    assert sorted(compiled) == [1, 2, 4, 8, 16, 32]
    for num_items in (1, 3, 19, 32, 70):
        difference = (handler.run(batch(num_items)) - portable.run(batch(num_items))).abs().max()
        assert float(difference) <= 1e-6
    assert fused._compiled == compiled
    assert not torch.jit.onednn_fusion_enabled()  # type: ignore[no-untyped-call]


def test_its_kernels_are_joined_and_those_of_other_graphs_in_the_process_are_not(tmp_path: Path) -> None:
    handler = loaded(tmp_path, ("fused", 8), ("frozen", None))
    for num_items, is_joined in ((1, True), (8, True), (9, False)):
        handler.run(batch(num_items))
        graph = str(torch.jit.last_executed_optimized_graph())  # type: ignore[attr-defined]
        assert ("prim::oneDNNFusionGroup" in graph) == is_joined


@pytest.mark.parametrize(
    ("bound", "sizes"), [(1, [1]), (4, [1, 2, 4]), (20, [1, 2, 4, 8, 16]), (32, [1, 2, 4, 8, 16, 32])]
)
def test_up_to_a_bound_no_more_is_compiled_than_it_needs(tmp_path: Path, bound: int, sizes: list[int]) -> None:
    handler = loaded(tmp_path, ("fused", bound), ("portable", None))
    assert sorted(handler.model.forms[0].graph._compiled) == sizes
    assert [handler.model.is_warm(num_items) for num_items in (1, bound, bound + 1)] == [True, True, False]


@pytest.mark.parametrize("num_items", [1, 2, 3, 7, 8, 31, 32, 33, 63, 100, 256])
def test_pieces_are_as_few_as_can_be(num_items: int) -> None:
    found = graph_forms.pieces(num_items)
    assert sum(found) == num_items
    assert len(found) == num_items // 32 + (num_items % 32).bit_count()


def test_archives_without_the_part_stay_portable(tmp_path: Path) -> None:
    assert used(load(write_model_folder(tmp_path, checked_contract()))) == [("portable", None)]


def test_a_form_that_cannot_be_made_is_replaced_by_the_portable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(graph: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(FORMS, "optimized", (fail, False))
    handler = loaded(tmp_path, ("frozen", 8), ("optimized", None))
    assert used(handler) == [("frozen", 8), ("portable", None)]
    assert "form optimized is not used, the portable one is: RuntimeError: no such kernel" in capfd.readouterr().err


class Shifted(nn.Module):
    """A graph with other answers from a batch size on."""

    def __init__(self, graph: nn.Module, first: int) -> None:
        super().__init__()
        self.graph, self.first = graph, first

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.graph(pixels)
        return answers + 1e-3 if len(pixels) >= self.first else answers


@pytest.mark.parametrize("first", [1, 2, 7])
def test_a_form_without_parity_is_replaced_by_the_portable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], first: int
) -> None:
    monkeypatch.setitem(FORMS, "optimized", (lambda graph: Shifted(graph, first), False))
    assert used(loaded(tmp_path, ("optimized", None))) == [("portable", None)]
    assert f"off by 0.001 on a batch of {first}, allowed is 1e-05" in capfd.readouterr().err


def test_int8_forms_may_deviate_as_far_as_the_contract_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMS, "optimized", (lambda graph: Shifted(graph, 1), False))
    contract = {**checked_contract(), "precision": "int8-static", "optimize": optimize(("optimized", None))}
    contract["self_check"]["tolerance"] = 0.01
    assert used(load(write_model_folder(tmp_path, contract))) == [("optimized", None)]


def test_the_self_checks_images_are_what_parity_is_checked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[npt.NDArray[np.uint8]] = []
    monkeypatch.setattr(graph_forms, "check_parity", lambda *arguments: seen.extend(arguments[3]))
    loaded(tmp_path, ("frozen", None))
    assert any(np.array_equal(each, images.pattern().transpose(2, 0, 1)) for each in seen)


@pytest.mark.parametrize("form", FORM_NAMES)
def test_the_environment_overrides_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("TORCHGATE_GRAPH_FORM", form)
    assert used(loaded(tmp_path, ("frozen-channels-last", 4), ("optimized", None))) == [(form, None)]


def test_an_unknown_override_is_named_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHGATE_GRAPH_FORM", "faster")
    assert used(loaded(tmp_path, ("frozen", None))) == [("frozen", None)]
    assert "TORCHGATE_GRAPH_FORM is 'faster'; allowed is one of portable, frozen" in capfd.readouterr().err


@pytest.mark.parametrize(
    "broken",
    [
        [],
        "frozen",
        {},
        {"forms": []},
        {"forms": ["frozen"]},
        optimize(("faster", None)),
        optimize(("frozen", 8)),
        optimize(("frozen", None), ("optimized", None)),
        optimize(("frozen", 1), ("optimized", 2), ("portable", None)),
    ],
)
def test_a_part_that_cannot_be_read_leaves_the_graph_portable(broken: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert forms_to_use({"optimize": broken}, "", CPU) == [Choice("portable")]
    assert "optimize cannot be used" in capfd.readouterr().err


def test_on_a_gpu_the_cpus_forms_give_way_to_the_frozen_one() -> None:
    assert forms_to_use({"optimize": optimize(("optimized", None))}, "", GPU) == [Choice("frozen")]
    assert forms_to_use({}, "optimized-channels-last", GPU) == [Choice("frozen")]
    assert forms_to_use({}, "portable", GPU) == forms_to_use({}, "", GPU) == [Choice("portable")]


def test_later_fields_of_the_part_are_let_pass() -> None:
    document = {**optimize(("frozen", 8), ("optimized", None)), "of": "tomorrow"}
    assert read_choices(document) == [Choice("frozen", 8), Choice("optimized")]


def test_grey_images_have_one_layout_only(tmp_path: Path) -> None:
    contract = toy_contract(channels=1, optimize=optimize(("frozen-channels-last", None)))
    contract["self_check"]["cases"] = []

    handler = load(write_model_folder(tmp_path, contract, toy_graph(channels=1)))
    (result,) = handler.predict([images.grey_png()], 3, probabilities=False)["results"]
    assert len(result["top_k"]) == 3


@pytest.mark.parametrize(
    ("machine", "needed", "here"),
    [("arm64", "AVX2", "AVX512"), ("", "AVX512", "AVX2"), ("", "AVX2", "DEFAULT"), ("", "AVX2", "SVE256")],
)
def test_machine_code_of_another_processor_is_refused_before_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, needed: str, here: str
) -> None:
    compiled_for = {"machine": machine or platform.machine(), "processor": needed}
    contract = {"compile": "aoti", "compiled_for": compiled_for}
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: here)
    with pytest.raises(RuntimeError, match=f"with {needed}, and here is .* with {here}: export it on such a machine"):
        load_graph(tmp_path / "no package is opened", contract, "", torch.device("cpu"), [])
