"""What arrives is not what was agreed."""

from monarch_async.errors.error import Error


class WireError(Error):
    """What arrives on a connection is not what was agreed."""


class FrameTooLarge(WireError):
    """A frame announces more bytes than allowed."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"frame of {self.length} bytes is over the limit of {self.limit}"


class BadFrame(WireError):
    """A frame that does not parse."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"bad frame: {self.why}"


class HandshakeRefused(WireError):
    """The two ends did not agree to talk. ``side`` is ``local`` where we refused, ``remote`` where the peer did."""

    def __init__(self, reason: str, side: str = "local") -> None:
        super().__init__(reason, side)
        self.reason, self.side = reason, side

    def __str__(self) -> str:
        who = "peer refused the handshake" if self.side == "remote" else "handshake refused"
        return f"{who}: {self.reason}"


class LinkBroken(WireError):
    """A connection ended, or cannot be resumed."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer, self.why = peer, why

    def __str__(self) -> str:
        return f"link to {self.peer} broken: {self.why}"
