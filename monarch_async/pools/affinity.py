"""Which replica had a key last."""

from collections import OrderedDict

from monarch_async.pools.events import Key

LIMIT = 100_000  #: keys that are remembered; those used longest ago are forgotten


class Affinity:
    """Keys and their replicas, the last used last."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._replicas: OrderedDict[Key, int] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._replicas)

    def find(self, key: Key) -> int | None:
        """Return the replica that had a key last."""
        return self._replicas.get(key)

    def note(self, key: Key, replica: int) -> None:
        """Remember that a replica has a key now."""
        self._replicas[key] = replica
        self._replicas.move_to_end(key)
        if len(self._replicas) > self._limit:
            self._replicas.popitem(last=False)

    def forget(self, replica: int) -> None:
        """A replica takes nothing more: its keys go where there is room."""
        for key in [key for key, had in self._replicas.items() if had == replica]:
            del self._replicas[key]
