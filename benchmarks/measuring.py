"""What does it cost to measure? The gateway and the same without its metrics, side by side, in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.load import Endpoint, closed_loop
from benchmarks.systems import gateway
from benchmarks.tasks import Put
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Measuring:
    """Pairs of runs over the workers, at several numbers of clients."""

    workload: Workload
    clients: tuple[int, ...]
    num_pairs: int
    seconds: float

    @property
    def key(self) -> str:
        """Return its key."""
        return f"metrics/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the numbers of clients."""
        return [str(clients) for clients in self.clients]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure the throughput with metrics over that without: the median of the pairs."""
        measured, unmeasured = gateway("workers"), gateway("workers", program="benchmarks.unmeasured")
        with measured(self.workload) as on, unmeasured(self.workload) as off:
            for each in (on, off):
                closed_loop(each.endpoint, max(self.clients), self.seconds)
            for cell in wanted:
                ratios = []
                for pair in range(self.num_pairs):
                    order = (on, off) if pair % 2 else (off, on)
                    speeds = {id(each): self._speed(each.endpoint, int(cell)) for each in order}
                    ratios.append(speeds[id(on)] / speeds[id(off)])
                put(cell, {"ratio": median(ratios), "ratios": ratios})

    def _speed(self, endpoint: Endpoint, clients: int) -> float:
        return float(closed_loop(endpoint, clients, self.seconds)["throughput"])
