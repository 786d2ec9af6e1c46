"""Settings, all with defaults, each also settable as ``MONARCH_ASYNC_<NAME>`` in the environment of the client.

Seconds and bytes unless the name says otherwise. The client's values are handed to the agents and workers it starts.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

#: What `Config.transports` may name.
TRANSPORTS = ("local", "cma", "memfd", "ucx", "tcp")

_PREFIX = "MONARCH_ASYNC_"

#: Variables that are read elsewhere.
_OTHERS = {f"{_PREFIX}TOKEN", f"{_PREFIX}RESOURCES"}

#: From which likeness on a variable is taken for a misspelt setting; the prefix counts too.
_ALIKE = 0.93

#: Settings that name files.
_FILES = ("tls_cert", "tls_key", "tls_ca")


@dataclass(frozen=True, slots=True)
class Config:
    """What may be tuned. ``Config.from_env()`` reads the environment once, when a client or agent starts."""

    resume_window: float = 30.0  #: how long a dropped connection may be resumed; past it the host is lost
    heartbeat: float = 2.0  #: a link that sent nothing for so long says that it lives
    cancel_grace: float = 5.0  #: how long a cancelled call waits for the remote acknowledgement
    stop_grace: float = 5.0  #: how long teardown hooks may take before TERM, and TERM before KILL
    block_warning: float = 0.1  #: a loop blocked for so long is reported with its stack
    max_frame: int = 16 << 20  #: largest frame accepted after the handshake
    chunk: int = 1 << 20  #: payload bytes per chunk frame, where it cannot
    large: int = 64 << 10  #: a payload of more than this goes over the data plane
    #: Which ways tensors may take, best first: local (same process), cma, memfd (same machine), ucx, tcp. One alone is
    #: forced; none at all leaves tensors inside the messages, in chunks. With cma a process that offers its memory
    #: allows processes of the same user to read all of it from then on, as a debugger may (``PR_SET_PTRACER_ANY``). UCX
    #: authenticates nobody: who reaches a process's UCX port can read and write its memory.
    transports: str = "local,cma,memfd,tcp"
    bulk_chunk: int = 4 << 20  #: bytes per chunk on the data plane
    bulk_window: int = 32 << 20  #: bytes a sender may be ahead of its receiver, per transfer
    bulk_retries: float = 10.0  #: how long a broken bulk connection is redialled before the transfer fails
    store_bytes: int = 0  #: memory for shared objects per host; 0: three tenths of what the machine has
    spill_folder: str = ""  #: where shared objects go on disk when that is full; none: `put` waits
    direct_calls: bool = True  #: often used paths on one machine bypass the agent
    window_calls: int = 4096  #: unanswered calls from one proc to one actor before further ones wait at the sender
    window_bytes: int = 256 << 20  #: payload bytes of those calls
    stream_items: int = 64  #: items a generator endpoint may be ahead of its consumer
    stream_bytes: int = 16 << 20  #: and bytes
    #: PEM files: the certificate that this machine shows, with those between it and its CA; its private key (none: in
    #: the same file); the CAs that sign others' certificates (none: the system's). They turn TLS on: `transport.tls`.
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    task_idle: float = 5.0  #: a worker for tasks that has had none for so long is given back
    stderr_lines: int = 20  #: how many of its last stderr lines a dead proc's error shows
    warn_after: float = 10.0  #: a placement that waits for so long is logged, with a table of who holds what
    fold_logs: bool = False  #: fold runs of identical lines into one with a count

    def __post_init__(self) -> None:
        """Check what has only a few values. Raises ValueError."""
        unknown = [name for name in self.allowed_transports if name not in TRANSPORTS]
        if unknown:
            raise ValueError(f"transports={self.transports!r}: {unknown[0]!r} is none of {', '.join(TRANSPORTS)}")
        if self.tls_key and not self.tls_cert:
            raise ValueError(f"tls_key={self.tls_key!r}, but no tls_cert: a key is of no use without its certificate")

    @property
    def allowed_transports(self) -> tuple[str, ...]:
        """The names in ``transports``."""
        return tuple(name.strip() for name in self.transports.split(",") if name.strip())

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Config":
        """Return the defaults, overridden by ``MONARCH_ASYNC_*`` variables of ``environ`` (``os.environ``).

        Raises ValueError for a value of the wrong kind, and for a variable whose name is nearly that of a setting.
        """
        environ = os.environ if environ is None else environ
        _check_names(environ, [field.name for field in fields(cls)])
        found: dict[str, Any] = {}
        for field in fields(cls):
            text = environ.get(f"MONARCH_ASYNC_{field.name.upper()}")
            if text is not None:
                found[field.name] = _parse(field.name, type(field.default), text)
        for name in _FILES:  # procs run in other folders
            if found.get(name):
                found[name] = os.path.abspath(found[name])
        return replace(cls(), **found)

    def as_env(self) -> dict[str, str]:
        """Return what differs from the defaults as environment variables, for processes started from here."""
        default = type(self)()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: value for name, value in values.items() if value != getattr(default, name)}
        return {f"MONARCH_ASYNC_{name.upper()}": str(value) for name, value in changed.items()}


def _check_names(environ: Mapping[str, str], settings: Sequence[str]) -> None:
    """Raise ValueError for a name that nearly is one.

    Other programs may have variables of this prefix too: only what looks like a setting is refused.
    """
    known = {_PREFIX + name.upper() for name in settings} | _OTHERS
    for name in environ:
        if name.upper().startswith(_PREFIX) and name not in known:
            import difflib  # hardly ever

            meant = difflib.get_close_matches(name.upper(), known, 1, _ALIKE)
            if meant:
                raise ValueError(f"{name} is no setting: {meant[0]} is?")


def _parse(name: str, kind: type, text: str) -> object:
    try:
        if kind is bool:
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise ValueError(f"MONARCH_ASYNC_{name.upper()}={text!r}: expected {kind.__name__}") from None
