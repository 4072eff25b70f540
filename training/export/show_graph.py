"""A TorchScript graph for people: as exported, as each step of optimisation leaves it, its operators counted."""

from collections import Counter
from typing import Any

import torch

from training.artifacts import Run, Variant
from training.data.dataset import load_split
from training.errors import SettingError
from training.export.export import load_graph_card
from training.export.fastest_form import apply_form
from training.export.graph_file import load_compiled

# A graph is specialised in the first calls and optimised in the second.
NUM_CALLS = 3


def graphs(run: Run, variant: Variant, batch_size: int) -> dict[str, Any]:
    """Return the graph as exported, its calls inlined; frozen; optimised for inference; and as it was last run.

    Raises RunError if the run was not exported, SettingError for a variant that is no TorchScript.
    """
    if load_graph_card(run, variant).compile == "aoti":
        raise SettingError(f"--variant is {variant}, which is machine code; allowed are the others, of TorchScript")
    images, _ = load_split(run, "validation")
    batch = images[torch.arange(batch_size) % len(images)]
    exported = load_compiled(run.graph(variant))
    found = {"exported": exported.inlined_graph}
    models = {form: apply_form(load_compiled(run.graph(variant)), form) for form in ("frozen", "optimized")}
    found |= {form: model.graph.inlined_graph for form, model in models.items()}  # type: ignore[attr-defined]
    with torch.inference_mode():
        for _ in range(NUM_CALLS):
            models["frozen"](batch)
        found["as run"] = models["frozen"].graph.graph_for(batch)  # type: ignore[attr-defined]
    return found


def operators(graph: Any) -> Counter[str]:
    """Return how often each operator stands in a graph, those of its loops, branches and fused groups among them."""
    counts: Counter[str] = Counter()
    blocks = [graph]
    for block in blocks:  # grows while it is gone through
        for node in block.nodes():
            counts[node.kind()] += 1
            blocks += node.blocks()
            if node.hasAttribute("Subgraph"):
                blocks.append(node.g("Subgraph"))
    return counts


def show_graph(run: Run, variant: Variant, batch_size: int) -> str:
    """Return the graphs one below the other, then the table of their operators."""
    found = graphs(run, variant, batch_size)
    texts = [f"{name}:\n{graph}" for name, graph in found.items()]
    counts = {name: operators(graph) for name, graph in found.items()}
    kinds = sorted(set().union(*counts.values()), key=lambda kind: (-max(each[kind] for each in counts.values()), kind))
    table = [f"| operator | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    table += [f"| {kind} | {' | '.join(str(each[kind]) for each in counts.values())} |" for kind in kinds]
    table.append(f"| all | {' | '.join(str(each.total()) for each in counts.values())} |")
    return "\n".join([*texts, *table])
