"""Circuit breaker: stops calling Redis for a while after several failures."""

import time
from collections.abc import Callable

FAILURES = 3  # failures in a row that open the circuit
PAUSE = 2.0  # seconds that the circuit stays open before one request tries again


class CircuitBreaker:
    """After `failures` failures in a row, refuses all calls (the circuit is open). After `pause` seconds it allows one
    call as an attempt. If the attempt succeeds, all calls are allowed again (the circuit is closed)."""

    def __init__(self, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic):
        self.limit, self.pause, self.clock = failures, pause, clock
        self.failures = 0
        self.closed_at = 0.0
        self.met = False  # whether a call has ever succeeded

    @property
    def closed(self) -> bool:
        return self.met and self.failures < self.limit

    def allows(self) -> bool:
        if self.failures < self.limit:
            return True
        if self.clock() < self.closed_at:
            return False
        # This call is the attempt. Other calls are refused until the attempt succeeds. If the attempt has not succeeded
        # after `pause` seconds, the next call is a new attempt.
        self.closed_at = self.clock() + self.pause
        return True

    def succeeded(self) -> None:
        self.failures = 0
        self.met = True

    def failed(self) -> None:
        self.failures += 1
        if self.failures >= self.limit:
            self.closed_at = self.clock() + self.pause
