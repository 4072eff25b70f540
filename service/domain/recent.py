"""A mapping of bounded size that forgets what has not been asked for of late."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps at least the last `capacity` keys that were asked for, and at most twice as many."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.young: dict[K, V] = {}  # to look up first, without a call
        self._old: dict[K, V] = {}  # the young ones of before

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        value = self.young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        if len(self.young) >= self._capacity and key not in self.young:
            self._old, self.young = self.young, {}
        self.young[key] = value

    def __bool__(self) -> bool:
        """Return whether there is a key."""
        return bool(self.young or self._old)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.young.keys() | self._old.keys())
