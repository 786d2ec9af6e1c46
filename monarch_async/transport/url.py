"""Addresses: ``tls://host:port``, ``tcp://host:port`` (port 0 asks the kernel for one), ``unix:///absolute/path``."""

import contextlib
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed address: a path for a unix socket, host and port for TCP."""

    text: str
    path: str = ""
    host: str = ""
    port: int = 0
    name: str = ""  #: of a socket in Linux's abstract namespace, which leaves no file behind
    is_tls: bool = False  #: TCP, encrypted

    @classmethod
    def abstract(cls, name: str) -> "Url":
        """Return the address of an abstract unix socket: anybody on the machine may dial it, and must shake hands."""
        return cls(f"abstract unix socket {name}", name=name)

    @classmethod
    def inet(cls, host: str, port: int, is_tls: bool) -> "Url":
        """Return the address of a TCP socket."""
        return cls.parse(f"{'tls' if is_tls else 'tcp'}://{f'[{host}]' if ':' in host else host}:{port}")

    @classmethod
    def parse(cls, text: str) -> "Url":
        """Parse an address. Raises ValueError saying what is wrong."""
        with contextlib.suppress(ValueError):  # of a port that is no number, or too large a one
            parts = urlsplit(text)
            if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
                return cls(text, path=parts.path)
            is_inet = parts.scheme in ("tcp", "tls") and not parts.path.strip("/")
            if is_inet and parts.hostname and parts.port is not None:
                return cls(text, host=parts.hostname, port=parts.port, is_tls=parts.scheme == "tls")
        raise ValueError(f"bad address {text!r}: expected tcp://host:port, tls://host:port or unix:///absolute/path")

    @property
    def is_unix(self) -> bool:
        """Whether it is of a unix socket: never encrypted, as no network sees it."""
        return bool(self.path or self.name)

    @property
    def is_local_only(self) -> bool:
        """Whether only this machine can reach it."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
