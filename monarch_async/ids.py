"""Addresses and ids: plain integers on the wire, readable in messages.

A *proc address* is one unsigned 64-bit integer: the host id in the high 32 bits, the proc id in the low 32. Agents
route on the high half first. Host ids are drawn at random by each agent when it starts; proc ids are counted by the
spawner from a random start, so that an address exists before the proc does and messages to it can be sent at once.
An *actor id* is drawn by the spawner and is the same for every member of one actor mesh: a member is the pair
(proc address, actor id).
"""

import os

#: The proc id under which an agent itself is addressed.
AGENT = 0

_MASK = 0xFFFF_FFFF


def address(host: int, proc: int) -> int:
    """Return the 64-bit address of proc id ``proc`` on host id ``host``."""
    return host << 32 | proc


def host_of(addr: int) -> int:
    """Return the host id in the high half of an address."""
    return addr >> 32


def proc_of(addr: int) -> int:
    """Return the proc id in the low half of an address."""
    return addr & _MASK


def agent_of(addr: int) -> int:
    """Return the address of the agent of the host on which ``addr`` lives."""
    return addr & ~_MASK


def random_id32() -> int:
    """Return a random non-zero id of 31 bits, for hosts and as a start for counting procs."""
    return int.from_bytes(os.urandom(4), "little") >> 1 or 1


def random_id64() -> int:
    """Return a random non-zero id of 63 bits, for actors and ports."""
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


def format_address(addr: int) -> str:
    """Return ``addr`` as it is shown in tables and logs: ``1f3a77c2:0000002a``."""
    return f"{addr >> 32:08x}:{addr & _MASK:08x}"
