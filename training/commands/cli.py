"""The command line: which verb does what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from training.commands import data, experiments, graph, pipeline, signing, train
from training.errors import SettingError
from training.options.config import ArchiveConfig

VERBS: dict[str, Callable[[Sequence[str], ArchiveConfig], None]] = {
    "prepare": pipeline.run_prepare,
    "train": train.run_train,
    "evaluate": pipeline.run_evaluate,
    "quantize": pipeline.run_quantize,
    "export": pipeline.run_export,
    "archive": pipeline.run_archive,
    "pipeline": pipeline.run_pipeline,
    "sign": signing.run_sign,
    "keys": signing.run_keys,
    "profile": pipeline.run_profile,
    "pack": data.run_pack,
    "bench-loader": data.run_bench_loader,
    "graph": graph.run_graph,
    "sweep": experiments.run_sweep,
    "compare": experiments.run_compare,
}

REMOVED_KEY = "TORCHGATE_MANIFEST_KEY_FILE"  # of the HMAC that signed manifests before


def dispatch(args: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the stage that the arguments name; raises TrainingError for what its caller can mend."""
    verb, *rest = args
    if verb not in VERBS:
        raise SettingError(f"there is no stage {verb!r}; allowed is one of {', '.join(VERBS)}")
    if environment.get(REMOVED_KEY):
        raise SettingError(
            f"{REMOVED_KEY} is no longer read: remove it, make a key with `python -m training keys new FILE`, and set "
            "TORCHGATE_SIGNING_KEY_FILE=FILE"
        )
    store, key_file = (environment.get(f"TORCHGATE_{name}") for name in ("MODEL_STORE", "SIGNING_KEY_FILE"))
    where = ArchiveConfig(signing_key_file=Path(key_file) if key_file else None)
    VERBS[verb](rest, replace(where, model_store=Path(store)) if store else where)
