"""What a host agent and its zygotes say to each other over a unix stream socket.

Length-prefixed msgpack arrays: a number for the kind, then the fields. A `Fork` travels with the worker's
three descriptors (control, stdout, stderr) beside its first byte.
"""

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import msgpack

#: descriptors that travel with a `Fork`: control, stdout, stderr
FORK_DESCRIPTORS = 3

_LENGTH = struct.Struct("<I")
_TEXT = "surrogateescape"  # environments and paths may hold bytes that are no UTF-8


@dataclass(frozen=True, slots=True)
class Fork:
    """To the zygote: start a worker; `bootstrap` says what the spec may hold."""

    spec: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Signal:
    """To the zygote: send a signal to the process group of a worker; nothing happens if it is gone."""

    id: int
    signo: int


@dataclass(frozen=True, slots=True)
class End:
    """To the zygote: kill everything below you and exit. The end of the stream means the same."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the zygote: the imports are done, ``seconds`` after its interpreter came up."""

    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """From the zygote: it cannot be one, and exits."""

    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """From the zygote: the worker is set up and is about to run its entry."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """From the zygote: the worker could not be started; no `Exited` follows."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """From the zygote: a started worker ended, with this status as ``os.waitpid`` gives it."""

    id: int
    pid: int
    wait_status: int


Order = Fork | Signal | End
Report = Ready | Failed | Started | Refused | Exited
_KINDS = (Fork, Signal, End, Ready, Failed, Started, Refused, Exited)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def pack(value: object) -> bytes:
    """Return plain values as msgpack."""
    packed = msgpack.packb(value, unicode_errors=_TEXT)
    assert packed is not None
    return packed


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, with lists for tuples."""
    return msgpack.unpackb(data, unicode_errors=_TEXT)


def encode(message: Order | Report) -> bytes:
    """Return the message as one frame."""
    fields = (message.spec,) if isinstance(message, Fork) else astuple(message)
    body = pack((_NUMBERS[type(message)], *fields))
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns the bytes of one direction back into messages, however they were split."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Order | Report]:
        """Take bytes and return the messages they complete."""
        buffer = self._buffer
        buffer += data
        messages: list[Order | Report] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _LENGTH.unpack_from(buffer, start)[0]
            if len(buffer) < stop:
                break
            number, *fields = unpack(bytes(buffer[start + _LENGTH.size : stop]))
            messages.append(_KINDS[number](*fields))
            start = stop
        del buffer[:start]
        return messages
