"""A semaphore without overtaking.

device = FairSemaphore(1)
with device:
    ...  # at most one thread at a time, in the order in which they asked
"""

import threading
import time
from collections import deque


class FairSemaphore:
    """A semaphore that threads get in the order in which they asked.

    A thread that releases `threading.Semaphore` can take it again before a waiting thread wakes up. On a GPU, a
    prepared batch therefore waited while the other thread ran many later ones (measured: loadtest/README.md).
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._lock = threading.Lock()  # protects `_free` and `_turns`
        self._turns: deque[threading.Lock] = deque()  # of the threads that wait, oldest first; released at their turn

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if not self._turns:
                self._free += 1
                return
            self._turns.popleft().release()
        time.sleep(0)  # releases the interpreter's lock, so that the thread whose turn it is starts at once
