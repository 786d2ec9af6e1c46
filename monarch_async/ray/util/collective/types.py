"""How a group reduces, and what it talks over. The file has the name that programs import."""

from enum import Enum
from typing import ClassVar


class ReduceOp(Enum):
    """What the tensors of all ranks are put together with."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


class Backend(str):
    """The name of a backend, in upper case.

    ``NCCL`` is for tensors in the memory of GPUs, ``GLOO`` for those of the host and for NumPy arrays. ``torch_gloo``
    is another name of the latter.
    """

    NCCL: ClassVar[str] = "NCCL"
    GLOO: ClassVar[str] = "GLOO"

    def __new__(cls, name: str) -> "Backend":
        """Return the backend of any spelling of its name. Raises ValueError for another, TypeError for no str."""
        if not isinstance(name, str):
            raise TypeError(f"a backend is named by a str, got {name!r}")
        try:
            return super().__new__(cls, _SPELLINGS[name.upper()])
        except KeyError:
            raise ValueError(f"no backend {name!r}: there are NCCL (GPUs) and GLOO (CPUs)") from None


_SPELLINGS = {"NCCL": "NCCL", "GLOO": "GLOO", "TORCH_GLOO": "GLOO"}
