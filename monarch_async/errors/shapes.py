"""Coordinates and sizes that do not fit."""

from collections.abc import Sequence

from monarch_async.errors.error import Error


class AxisError(Error, KeyError):
    """No such axis."""

    def __init__(self, axis: str, axes: Sequence[str]) -> None:
        axes = tuple(axes)
        super().__init__(axis, axes)
        self.axis, self.axes = axis, axes

    def __str__(self) -> str:
        return f"unknown axis {self.axis!r}; this mesh has: {', '.join(self.axes) or 'no axes'}"


class RankError(Error, IndexError):
    """A coordinate or rank outside the mesh."""

    def __init__(self, what: str, index: int, size: int) -> None:
        super().__init__(what, index, size)
        self.what, self.index, self.size = what, index, size

    def __str__(self) -> str:
        return f"{self.what} {self.index} is out of range: there are {self.size} (0 to {self.size - 1})"


class ExtentError(Error, ValueError):
    """Sizes or axes that make no mesh."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why
