"""What synchronisation between processes can end in, beside `NotHolder` and `Closed`."""

from monarch_async.errors.error import Error


class Empty(Error):
    """A queue has no item now, and the caller chose not to wait."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is empty"


class BarrierBroken(Error):
    """A barrier will not be passed: one of its parties died or left. ``why`` names it. `Barrier.reset` mends it."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is broken: {self.why}"
