"""Order and number of the threads that hold a semaphore."""

import threading
import time
from contextlib import ExitStack

import pytest

from isosim.encoders.fair_semaphore import FairSemaphore
from tests.processes import wait_until


@pytest.mark.parametrize("places", [1, 2])
def test_threads_get_in_as_they_asked_and_no_more_at_once_than_there_are_places(places: int) -> None:
    device, order, inside, most = FairSemaphore(places), list[int](), list[int](), 0

    def use(number: int) -> None:
        nonlocal most
        with device:
            order.append(number)
            inside.append(number)
            most = max(most, len(inside))
            time.sleep(0.001)
            inside.remove(number)

    threads = [threading.Thread(target=use, args=[number]) for number in range(20)]
    with ExitStack() as taken:
        for _ in range(places):
            taken.enter_context(device)
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda count=count: len(device._turns) == count, 10, every=0.001)
    for thread in threads:
        thread.join(10)
    assert 1 <= most <= places
    assert sorted(order) == list(range(20))
    assert places > 1 or order == sorted(order)  # of two that have their places, either may be seen first
    assert device._free == places
