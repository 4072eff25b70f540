"""Who waits has a turn by address: one client with thousands of connections keeps nobody else waiting."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")


class Turns(Generic[Waiting]):
    """Those that wait. Addresses take turns; each has its oldest go first."""

    def __init__(self) -> None:
        self.num = 0
        self._by_address: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def add(self, waiting: Waiting, address: str) -> int:
        """Add one at the end of its address; return how many that address has now."""
        queue = self._by_address.setdefault(address, deque())
        queue.append(waiting)
        self.num += 1
        return len(queue)

    def pop(self) -> Waiting:
        """Remove and return the oldest of the address whose turn it is."""
        address = next(iter(self._by_address))
        waiting = self.pop_of(address)
        if address in self._by_address:
            self._by_address.move_to_end(address)
        return waiting

    def pop_of(self, address: str) -> Waiting:
        """Remove and return the oldest of this address, out of turn."""
        queue = self._by_address[address]
        waiting = queue.popleft()
        self.num -= 1
        if not queue:
            del self._by_address[address]
        return waiting
