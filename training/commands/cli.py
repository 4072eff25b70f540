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

USAGE = """usage: torchgate train [STAGE] [options]
       python -m training STAGE [options]

Both do the same. `torchgate train` without a STAGE runs the pipeline.

stages, in their order:
  prepare       decode images into the arrays of a new run
  train         find the weights
  evaluate      measure them on the test images; with --log, what a gateway has answered
  quantize      make the int8 variants and measure them
  export        make TorchScript graphs of all variants
  archive       put all into the model store
  pipeline      all of these in a row

  keys          new FILE makes a key that signs the model store; show FILE prints its id
  sign          sign the manifest anew, or take archives out of it with --revoke
  graph         what TorchScript made of a run's model, before and after it is optimised
  profile       where the time of a run's graph, or of an archive's, goes
  pack          put images into tar shards, which training then streams
  bench-loader  whether reading images or the model limits training
  sweep         search the options of training for the best validation accuracy
  compare       runs side by side: options, figures, learning curves

torchgate train STAGE --help explains the options of a stage."""


def dispatch(args: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the stage that the arguments name; raises TrainingError for what its caller can mend."""
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return
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
