"""Least-recently-used vectors in this process, bounded in bytes."""

from collections import OrderedDict

from service.core.texts import Pooled

ENTRY_OVERHEAD = 400  # bytes of Python objects an entry: key, tuple, array header, dictionary slot (sys.getsizeof)


class MemoryCache:
    """One event loop's cache; not for use from several threads."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # bytes
        self.size = 0  # bytes
        self._entries: OrderedDict[bytes, Pooled] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Pooled | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, entry: Pooled) -> None:
        cost = entry.vector.nbytes + ENTRY_OVERHEAD
        if key in self._entries or cost > self.capacity:
            return
        self._entries[key] = entry
        self.size += cost
        while self.size > self.capacity:
            _, oldest = self._entries.popitem(last=False)
            self.size -= oldest.vector.nbytes + ENTRY_OVERHEAD
