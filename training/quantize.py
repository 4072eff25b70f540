"""The variants with smaller numbers inside, and the stage that measures them."""

import warnings

import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

from training.artifacts import Run, Variant
from training.evaluate import evaluate_model, save_evaluation
from training.weights import load_graph


def to_int8_dynamic(graph: nn.Module) -> nn.Module:
    """Return a copy whose linear layers hold int8 weights and scale their int8 inputs anew at each call.

    One scale serves the whole batch, so an image's answer depends a little on its batch-mates. Convolutions have no
    dynamic form in torch and stay float32; of a ResNet this quantizes the last layer alone.
    """
    with warnings.catch_warnings():
        # Both have no successor that TorchScript can hold; torch is pinned for trainer and server alike.
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return quantize_dynamic(graph, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-any-return,no-untyped-call]


def load_variant(run: Run, variant: Variant) -> nn.Module:
    """Return the variant of the trained model, in eager form and eval mode; raises RunError if it was not trained."""
    graph = load_graph(run)
    match variant:
        case "fp32":
            return graph
        case "int8-dynamic":
            return to_int8_dynamic(graph)


def quantize(run: Run) -> None:
    """Leave figures and pictures of the dynamically quantized model in the run.

    Its weights are derived again, bit-equal, where they are needed: there is no second weights file.
    """
    evaluation = evaluate_model(load_variant(run, "int8-dynamic"), run)
    save_evaluation(run, "int8-dynamic", evaluation)
    found = evaluation.batch_dependence
    print(
        f"int8-dynamic: alone or in a batch of {found.batch_size}, probabilities differ by up to "
        f"{found.max_abs_difference:.2g}; {found.num_class_changes} of {found.num_samples} classes change"
    )
