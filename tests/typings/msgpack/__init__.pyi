# What this package uses of msgpack, whose own source has no types.
from typing import Any

class UnpackException(Exception): ...

def packb(o: object, *, unicode_errors: str = ...) -> bytes: ...
def unpackb(
    packed: bytes | bytearray | memoryview,
    *,
    strict_map_key: bool = ...,
    use_list: bool = ...,
    unicode_errors: str = ...,
) -> Any: ...
