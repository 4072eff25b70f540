"""Quantization-aware training: what it trains, what stands still when, and what it is converted to."""

import json
import signal
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantizeBase

from tests.training.int8.qat_runs import QAT, copy_of, with_recipe
from tests.training.runs import Signalling, another_process_at, assert_same_end
from training.archive.contract import build_contract
from training.artifacts import VARIANTS, Run, sha256
from training.data.dataset import load_split
from training.data.prepare import prepare
from training.data.shards.pack import pack
from training.errors import NonFiniteLossError, RunError, SettingError, Terminated
from training.evaluation.evaluate import load_evaluation, predict
from training.export.compile import compile_graph
from training.export.export import check_parity
from training.int8.qat import fake_quantized, load_qat, to_int8, train_qat
from training.int8.quantize import load_variant, quantize
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions
from training.models.weights import load_card, load_graph, load_qat_card
from training.options.config import Config, LoaderConfig, QuantizeConfig


@pytest.fixture(scope="module")
def trained_on(exported: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = copy_of(exported, tmp_path_factory)
    quantize(run, QAT)
    return run


def layers(network: nn.Module) -> list[str]:
    return sorted(type(module).__name__ for module in network.modules() if next(module.children(), None) is None)


def test_it_has_the_kernels_of_the_static_variant(trained_on: Run) -> None:
    qat, static = load_variant(trained_on, "int8-qat"), load_variant(trained_on, "int8-static")
    assert layers(qat) == layers(static)
    assert not {"Conv2d", "BatchNorm2d"} & {type(module).__name__ for module in qat.modules() if "quantized" not in
                                            type(module).__module__}  # fmt: skip
    assert str(qat.network.code).count("quantized.add_relu(") == 9  # type: ignore[union-attr]


def test_it_learns_and_is_measured_like_the_others(trained_on: Run) -> None:
    found = load_evaluation(trained_on, "int8-qat")
    assert found.weights_sha256 == sha256(trained_on.qat.weights) != load_card(trained_on).sha256
    assert found.report.accuracy >= 0.9
    assert found.batch_dependence.max_abs_difference == 0
    images, labels = load_split(trained_on, "validation")
    answers = predict(load_qat(trained_on), images)
    card = load_qat_card(trained_on)
    assert (answers.argmax(axis=1) == labels.numpy()).mean() == card.validation_accuracy
    assert trained_on.confusion_matrix("int8-qat").exists()


def test_ranges_and_batch_statistics_move_first_and_stand_still_at_the_end(
    exported: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(exported, tmp_path_factory)
    states = [fake_quantized(load_graph(run)).state_dict()]

    def watched(network: nn.Module) -> nn.Module:
        """It is called after each epoch."""
        states.append({name: value.clone() for name, value in network.state_dict().items()})
        return to_int8(network)

    monkeypatch.setattr("training.int8.qat.to_int8", watched)
    train_qat(run, QAT)
    for what in ("max_val", "running_mean", "running_var"):
        names = [name for name in states[0] if name.endswith(what)]
        assert len(names) >= 19
        for name in names:
            before, first, second, third = (state[name] for state in states)
            assert not torch.equal(before, first)
            constant = "shortcut.weight" in name
            assert torch.equal(first, second) == constant
            assert torch.equal(second, third), "the last of three epochs is the last third"
    state = torch.load(run.qat.weights, weights_only=True)
    assert all(int(value) for name, value in state.items() if name.endswith("fake_quant_enabled"))
    card = load_qat_card(run)
    assert card.epoch == 3, "only the last of three epochs ends with ranges that stand still"
    assert [each["epoch"] for each in card.epochs] == [1, 2, 3]


def test_it_takes_the_images_that_the_training_took(
    exported: Run, tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    shards = tmp_path_factory.mktemp("shards") / "shards"
    pack("synthetic", shards, images_per_shard=50, broken="fail")
    run = copy_of(exported, tmp_path_factory)
    prepare(run, replace(config.data, data=str(shards)))
    # Of a run that streams, this is a sample, to calibrate with.
    run.images("train").unlink()
    train_qat(run, replace(QAT, qat_epochs=1))
    assert load_qat_card(run).epochs[0]["train_accuracy"] > 0.5
    with_recipe(run, loader=asdict(LoaderConfig(sampler="balanced")))
    with pytest.raises(SettingError, match="--sampler balanced"):
        train_qat(run, QAT)


def test_weights_change_and_shortcuts_do_not(trained_on: Run) -> None:
    state = torch.load(trained_on.qat.weights, weights_only=True)
    before = load_graph(trained_on).network.state_dict()
    shortcuts = [name for name in state if name.endswith("shortcut.weight")]
    assert len(shortcuts) == 2
    for name in before:
        if name in shortcuts:
            assert torch.equal(state[name], before[name])
        elif name.endswith("conv1.weight") or name == "linear.weight":
            assert not torch.equal(state[name], before[name])


def test_activations_have_seven_bits_and_weights_a_scale_for_each_channel() -> None:
    network = as_convolutions(build_model("resnet20", num_classes=5, channels=1))
    prepared = fake_quantized(ServingGraph(Normalize([0.4], [0.3]), network))
    rounded = [module for module in prepared.modules() if isinstance(module, FakeQuantizeBase)]
    found = {str((each.quant_min, each.quant_max, bool(each.is_per_channel))) for each in rounded}
    assert found == {"(0, 127, False)", "(-128, 127, True)"}


def test_the_int8_network_answers_like_the_one_that_was_trained(trained_on: Run) -> None:
    graph = load_graph(trained_on)
    network = fake_quantized(graph)
    network.load_state_dict(torch.load(trained_on.qat.weights, weights_only=True))
    images, _ = load_split(trained_on, "test")
    simulated = predict(ServingGraph(graph.normalize, network.eval()), images)
    difference = abs(predict(load_qat(trained_on), images) - simulated)
    assert 0 < difference.mean() < 0.02
    kinds = {type(module).__module__ for module in to_int8(network).modules()}
    assert "torch.ao.nn.intrinsic.quantized.modules.conv_relu" in kinds
    assert network.training is False, "what was converted is left as it is"


def test_same_seed_gives_the_same_bytes(exported: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    brief = replace(QAT, qat_epochs=1)
    first, second = (copy_of(exported, tmp_path_factory) for _ in range(2))
    train_qat(first, brief)
    train_qat(second, brief)
    assert first.qat.weights.read_bytes() == second.qat.weights.read_bytes()
    assert first.qat.weights_card.read_bytes() == second.qat.weights_card.read_bytes()
    images, _ = load_split(exported, "test")
    assert (predict(load_qat(first), images) == predict(load_qat(second), images)).all()


@pytest.mark.parametrize("method", ["trace", "script"])
def test_its_graph_answers_like_the_eager_one(trained_on: Run, method: str) -> None:
    model = load_variant(trained_on, "int8-qat")
    images, _ = load_split(trained_on, "validation")
    graph = compile_graph(model, method, images[:2])  # type: ignore[arg-type]
    assert check_parity(graph, model, images).max_abs_difference == 0


def test_a_run_has_the_variant_only_if_it_was_asked_for(exported: Run, trained_on: Run) -> None:
    assert exported.variants == VARIANTS
    assert trained_on.variants == (*VARIANTS, "int8-qat")
    with pytest.raises(RunError, match="training quantize --qat"):
        load_variant(exported, "int8-qat")


def test_quantize_without_it_forgets_it(trained_on: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    quantize(run, QuantizeConfig())
    assert run.variants == VARIANTS
    assert not run.qat.weights.exists()


def test_weights_of_another_training_are_refused(trained_on: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    run.qat.weights.write_bytes(run.qat.weights.read_bytes() + b"?")
    with pytest.raises(RunError, match="is not the file that"):
        load_qat(run)
    card = json.loads(run.weights_card.read_text())
    run.weights_card.write_text(json.dumps(card | {"sha256": "0" * 64}))
    with pytest.raises(RunError, match="was trained on from other weights"):
        load_qat_card(run)


def test_figures_and_graphs_of_an_earlier_training_are_refused(
    trained_on: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    evaluation = run.evaluation("int8-qat").read_bytes()
    train_qat(run, replace(QAT, qat_epochs=1))
    with pytest.raises(RunError, match="is of other weights"):
        load_evaluation(run, "int8-qat")
    run.evaluation("int8-qat").write_bytes(evaluation)
    with pytest.raises(RunError, match="training export"):
        build_contract(run, "int8-qat", model="toy", release="1.0")


def test_interrupted_and_resumed_it_is_the_whole_training_bit_for_bit(
    trained_on: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    before = run.qat.weights.read_bytes()
    again = replace(QAT, qat_learning_rate=0.02)
    # Once while ranges move, once after they have stopped.
    for batch, resume in ((20, False), (12, True)):
        with monkeypatch.context() as patched:
            strategy = Signalling(batch, signal.SIGTERM)
            patched.setattr("training.int8.qat.SingleProcess", lambda _, strategy=strategy: strategy)
            with pytest.raises(Terminated, match=r"qat epoch [23]/3.*`python -m training quantize .* --qat --resume`"):
                quantize(run, again, resume=resume)
        assert run.qat.weights.read_bytes() == before
        load_qat(run)
    with pytest.raises(SettingError, match=r"leave out --qat-learning-rate 0\.01"):
        quantize(run, QAT, resume=True)
    train_qat(run, again, resume=True)
    whole = copy_of(trained_on, tmp_path_factory)
    train_qat(whole, again)
    assert_same_end(run.qat, whole.qat)


def test_it_holds_the_run_against_other_processes(trained_on: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with another_process_at(run.folder), pytest.raises(SettingError, match="--run: another process is at work in"):
        quantize(run, replace(QAT, qat_epochs=1))
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("refused", [{"qat_learning_rate": 1e20}, {"qat_epochs": 1}])
def test_a_failure_leaves_the_earlier_result(
    trained_on: Run, tmp_path_factory: pytest.TempPathFactory, refused: dict[str, float]
) -> None:
    run = copy_of(trained_on, tmp_path_factory)
    with_recipe(run, batch_size=105)
    weights, card = run.qat.weights.read_bytes(), run.qat.weights_card.read_bytes()
    with pytest.raises((NonFiniteLossError, SettingError)):
        quantize(run, replace(QAT, **refused))  # type: ignore[arg-type]
    assert (run.qat.weights.read_bytes(), run.qat.weights_card.read_bytes()) == (weights, card)
