"""All random generators of a process, together."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, so that a run depends on nothing that was drawn before it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all random generators of this process: Python's, NumPy's, torch's on CPU and GPUs."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set what `random_state` returned; the states of GPUs that are not there are left out."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    for index, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(each, index)
