"""Real workers of an archive that does as its images say, and what tests ask of them."""

import asyncio
from pathlib import Path

import psutil

from service.backends.embedded.backend import EmbeddedBackend
from service.backends.factory import restart_counter
from service.config.settings import Settings
from service.domain.backend import BatchAnswer, BatchOptions, Ranking
from service.telemetry.metrics import Metrics
from tests.odd_archive import TARGET

SECONDS = 60.0


def make_workers(store: Path, metrics: Metrics | None = None, **options: object) -> EmbeddedBackend:
    fields = {"backend": "workers", "model_store": store, "health_interval_seconds": 0.1, **options}
    return EmbeddedBackend(Settings.model_validate(fields), restart_counter(metrics or Metrics()))


async def until_ready(workers: EmbeddedBackend, num_workers: int) -> None:
    async with asyncio.timeout(SECONDS):
        while (await workers.survey())[TARGET].worker_states.get("ready", 0) != num_workers:
            await asyncio.sleep(0.01)


def worker_processes(temporary: Path | None = None) -> list[psutil.Process]:
    """Return the workers; those of the one gateway whose temporary folder is below `temporary`, if it is given.

    The one that other tests share starts workers at any time: it replaces what they killed.
    """

    def is_one(process: psutil.Process) -> bool:
        try:
            is_ours = temporary is None or process.environ().get("TMPDIR", "").startswith(str(temporary))
            return is_ours and any("launch.py" in part for part in process.cmdline())
        except psutil.Error:  # it has ended
            return False

    return [each for each in psutil.Process().children() if is_one(each)]


async def ask(
    workers: EmbeddedBackend, *items: str, timeout_seconds: float = SECONDS, is_large: bool = False
) -> BatchAnswer:
    options = BatchOptions(top_k=1, is_large=is_large)
    return await workers.predict(TARGET, [item.encode() for item in items], options, timeout_seconds)


def chosen(answer: BatchAnswer) -> int:
    (result,) = answer.results
    assert isinstance(result, Ranking)
    return result.top_k[0][0]
