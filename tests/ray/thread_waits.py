"""Waiting, in tests that run on threads. Apart from them: several modules do."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
