"""How a process's data plane is reached. Part of every handle, so small, and the same bytes for all of them.

An endpoint is also the right to use it: ``key`` is the secret of the handshake on its sockets. It travels between
processes of one cluster only, which have authenticated each other.
"""

import hashlib
import os
from dataclasses import astuple, dataclass
from functools import lru_cache

import msgpack

from monarch_async.errors import BadFrame
from monarch_async.transport.url import Url


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One process's data plane."""

    cluster: bytes  #: 8 bytes that all processes of a cluster share
    address: int  #: of the process, as in messages
    name: str  #: for errors: "trainers[0] on host-07"
    machine: bytes  #: 8 bytes: equal where two processes share a kernel and a pid namespace
    pid: int
    beacon: int  #: address of `region.Beacon` in its memory
    nonce: bytes  #: 16 bytes, which stand at ``beacon``: who reads others there reads the wrong process
    key: bytes = b""  #: secret of the handshake on its sockets
    local: str = ""  #: name of its abstract unix socket
    tcp: str = ""  #: "host:port"
    ucx: bytes = b""  #: address of its UCX worker
    network: bytes = b""  #: 8 bytes: equal where two processes reach each other's abstract unix sockets
    tls: str = ""  #: what the certificate on its TCP socket is for; empty: it has no TLS

    @property
    def url(self) -> Url:
        """Where it listens on TCP."""
        return Url.parse(f"{'tls' if self.tls else 'tcp'}://{self.tcp}")

    @lru_cache(maxsize=64)  # noqa: B019  a process packs its own, and few others
    def pack(self) -> bytes:
        """Return it as bytes."""
        return msgpack.packb(astuple(self))

    @staticmethod
    @lru_cache(maxsize=4096)
    def unpack(data: bytes) -> "Endpoint":
        """Return it from bytes. Raises BadFrame."""
        try:
            return Endpoint(*msgpack.unpackb(data, use_list=False))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BadFrame(f"endpoint of a data plane: {error}") from error


def cluster_id(token: bytes) -> bytes:
    """Return what tells apart the handles of different clusters; says nothing about the token."""
    return hashlib.sha256(b"monarch_async cluster" + token).digest()[:8]


@lru_cache(maxsize=1)
def this_machine() -> bytes:
    """Return what processes share that see each other's pids: of this boot of the kernel, and this pid namespace."""
    return _namespace("pid")


@lru_cache(maxsize=1)
def this_network() -> bytes:
    """Return what processes share that reach each other's abstract unix sockets: boot, and network namespace."""
    return _namespace("net")


def _namespace(kind: str) -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        return hashlib.sha256(boot + os.readlink(f"/proc/self/ns/{kind}").encode()).digest()[:8]
    except OSError:
        return os.urandom(8)  # nobody's: another system
