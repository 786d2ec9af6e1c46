"""The handshake: both ends prove that they hold the cluster token before anything else is parsed.

Pure: bytes in, bytes out. The caller brings the randomness (a fresh nonce per connection) and the deadline.

Every message has the same header, ``!8sHBI``: magic, version, kind, length of the body. It stays so in all
versions, so that ends of different versions can tell each other what is wrong.

    dialer -> listener  HELLO      nonce_d[32]
    dialer <- listener  CHALLENGE  nonce_l[32]
    dialer -> listener  PROOF      info_d, mac_d[32]
    dialer <- listener  WELCOME    info_l, mac_l[32]
    either -> either    REFUSAL    reason (UTF-8), in place of any of the above

    mac_d = HMAC-SHA256(token, "monarch_async dialer"   || HELLO || CHALLENGE || PROOF[:-32])
    mac_l = HMAC-SHA256(token, "monarch_async listener" || HELLO || CHALLENGE || PROOF || WELCOME[:-32])

Messages enter the MAC whole, header and length included, so no two transcripts read the same. A recorded
proof fails against a fresh nonce; a reflected message has the wrong kind, and its MAC the wrong domain. It
is the three-pass mutual authentication with a cryptographic check function of ISO/IEC 9798-4, over HMAC
(RFC 2104).

The dialer proves first: the listener is the end that strangers can reach, and it shows them nothing that
depends on the token. Before that proof it reads a nonce and at most `MAX_INFO` of info, which it does not
look at, and says no more than one of three reasons (wrong token, wrong version, not a peer). Info is
authenticated, not hidden, and what follows the handshake is neither: on a network that is not trusted, TLS
goes underneath.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from monarch_async.errors import HandshakeRefused

VERSION = 1
MAGIC = b"\x93mnrch\r\n"  # no text protocol starts with it, and a transfer that mends line ends breaks it
NONCE_BYTES = 32
MAX_INFO = 64 << 10
MAX_REASON = 512  #: bytes of a refusal's text; longer ones are cut

WRONG_TOKEN = "wrong token"
NOT_A_PEER = "not a monarch_async peer"
SPEAKS_TLS = "the other end speaks TLS, and this one does not: both must be given tls:// or both tcp://"

HELLO, CHALLENGE, PROOF, WELCOME, REFUSAL = 1, 2, 3, 4, 5

_HEADER = Struct("!8sHBI")
_MAC_BYTES = 32
_TLS_RECORDS = (0x15, 0x16)  # alert, handshake: with which the other end of TLS begins
_BODY_SIZES = {
    HELLO: range(NONCE_BYTES, NONCE_BYTES + 1),
    CHALLENGE: range(NONCE_BYTES, NONCE_BYTES + 1),
    PROOF: range(_MAC_BYTES, _MAC_BYTES + MAX_INFO + 1),
    WELCOME: range(_MAC_BYTES, _MAC_BYTES + MAX_INFO + 1),
    REFUSAL: range(MAX_REASON + 1),
}


@dataclass(frozen=True, slots=True)
class Agreed:
    """The handshake succeeded. ``info`` is the peer's; ``leftover`` belongs to the stream that follows."""

    info: bytes
    leftover: bytes


def refusal(reason: str) -> bytes:
    """Return the message that ends the handshake; the peer raises ``HandshakeRefused(reason, "remote")``.

    Send it, then close, where `Dialer` or `Listener` raised with ``side == "local"``.
    """
    return _message(REFUSAL, reason.encode()[:MAX_REASON])


def handshake_length(stream: bytes | bytearray) -> int | None:
    """Return how many bytes at the start of one end's ``stream`` are its handshake; None while not known.

    For instruments between the two ends (`monarch_async.testing.proxy`): it checks nothing.
    """
    end = 0
    while len(stream) >= end + _HEADER.size:
        _, _, kind, size = _HEADER.unpack_from(stream, end)
        end += _HEADER.size + size
        if kind in (PROOF, WELCOME, REFUSAL):
            return end
    return None


class _End:
    """What both ends share: cutting the input into messages, within bounds, and the transcript's MAC."""

    __slots__ = ("_buffer", "_expected", "_role", "_token", "_transcript")

    def __init__(self, role: str, token: bytes, nonce: bytes, expected: int) -> None:
        if not token:
            raise ValueError("the cluster token is empty")
        assert len(nonce) == NONCE_BYTES
        self._role = role
        self._token = token
        self._expected = expected
        self._buffer = bytearray()
        self._transcript = b""

    def _next_body(self) -> bytes | None:
        """Return the body of the expected message, adding it to the transcript; None while it is incomplete.

        The length is checked before the body is there, so what is kept never outgrows the largest message.
        """
        buffer = self._buffer
        if buffer[:8] != MAGIC[: len(buffer)]:
            raise HandshakeRefused(SPEAKS_TLS if buffer[0] in _TLS_RECORDS else NOT_A_PEER)
        if len(buffer) < _HEADER.size:
            return None
        _, version, kind, size = _HEADER.unpack_from(buffer)
        if kind != REFUSAL and version != VERSION:
            raise HandshakeRefused(self._wrong_version(version))
        if kind not in (self._expected, REFUSAL) or size not in _BODY_SIZES[kind]:
            raise HandshakeRefused(NOT_A_PEER)
        end = _HEADER.size + size
        if len(buffer) < end:
            return None
        message = bytes(buffer[:end])
        del buffer[:end]
        body = message[_HEADER.size :]
        if kind == REFUSAL:
            raise HandshakeRefused(_printable(body), "remote")
        if kind in (PROOF, WELCOME):
            sender = "dialer" if kind == PROOF else "listener"
            expected = _mac(self._token, sender, self._transcript + message[:-_MAC_BYTES])
            if not hmac.compare_digest(expected, body[-_MAC_BYTES:]):
                raise HandshakeRefused(WRONG_TOKEN)
            body = body[:-_MAC_BYTES]
        self._transcript += message
        return body

    def _say(self, kind: int, body: bytes) -> bytes:
        """Return the next message of ours and add it to the transcript; PROOF and WELCOME get their MAC."""
        if kind in (PROOF, WELCOME):
            unsigned = _HEADER.pack(MAGIC, VERSION, kind, len(body) + _MAC_BYTES) + body
            message = unsigned + _mac(self._token, self._role, self._transcript + unsigned)
        else:
            message = _message(kind, body)
        self._transcript += message
        return message

    def _agreed(self, info: bytes) -> Agreed:
        self._expected = 0
        leftover = bytes(self._buffer)
        self._buffer.clear()
        return Agreed(info, leftover)

    def _wrong_version(self, theirs: int) -> str:
        # Named by role, not "ours" and "theirs": the same words are read at both ends.
        dialer, listener = (VERSION, theirs) if self._role == "dialer" else (theirs, VERSION)
        return f"wrong version: dialer speaks {dialer}, listener speaks {listener}"


class Dialer(_End):
    """The end that connects. Send `start`, then feed what arrives to `receive`."""

    __slots__ = ("_info", "_nonce")

    def __init__(self, token: bytes, nonce: bytes, info: bytes) -> None:
        """Take the cluster token, 32 fresh random bytes, and up to `MAX_INFO` bytes to tell the listener."""
        super().__init__("dialer", token, nonce, CHALLENGE)
        self._nonce = nonce
        self._info = _checked(info)

    def start(self) -> bytes:
        """Return the first bytes of the connection."""
        return self._say(HELLO, self._nonce)

    def receive(self, data: bytes) -> tuple[bytes, Agreed | None]:
        """Take bytes in any split; return what to send now, and the result once the listener proved itself.

        Raises HandshakeRefused; the object is of no use after that, nor after it has agreed.
        """
        assert self._expected, "already agreed"
        self._buffer += data
        reply = b""
        if self._expected == CHALLENGE:
            nonce = self._next_body()
            if nonce is None:
                return b"", None
            if nonce == self._nonce:  # an echo; no listener draws the same
                raise HandshakeRefused(NOT_A_PEER)
            self._expected = WELCOME
            reply = self._say(PROOF, self._info)
        info = self._next_body() if self._buffer else None
        return reply, None if info is None else self._agreed(info)


class Listener(_End):
    """The end that was connected to. Feed what arrives to `receive`."""

    __slots__ = ("_info", "_nonce")

    def __init__(self, token: bytes, nonce: bytes, info: bytes | Callable[[bytes], bytes]) -> None:
        """Take the cluster token, 32 fresh random bytes, and what an authenticated dialer shall be told.

        ``info`` may depend on the dialer's (a resume does): a callable gets that once the dialer has proved
        itself, and refuses it by raising HandshakeRefused, with any reason it likes.
        """
        super().__init__("listener", token, nonce, HELLO)
        self._nonce = nonce
        self._info = info if callable(info) else _checked(info)

    def receive(self, data: bytes) -> tuple[bytes, Agreed | None]:
        """Take bytes in any split; return what to send now, and the result once the dialer has proved itself.

        Raises HandshakeRefused; the object is of no use after that, nor after it has agreed.
        """
        assert self._expected, "already agreed"
        self._buffer += data
        reply = b""
        if self._expected == HELLO:
            if self._next_body() is None:
                return b"", None
            self._expected = PROOF
            reply = self._say(CHALLENGE, self._nonce)
        info = self._next_body() if self._buffer else None
        if info is None:
            return reply, None
        answer = _checked(self._info(info)) if callable(self._info) else self._info
        return reply + self._say(WELCOME, answer), self._agreed(info)


class TurnedAway:
    """In place of a `Listener`, where whoever dials is to be told that it cannot be one of ours, and why."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str) -> None:
        """``reason`` is what the dialer is told."""
        self._reason = reason

    def receive(self, data: bytes) -> tuple[bytes, Agreed | None]:
        """Raise HandshakeRefused, whatever comes."""
        raise HandshakeRefused(self._reason)


def _message(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, kind, len(body)) + body


def _mac(token: bytes, sender: str, transcript: bytes) -> bytes:
    return hmac.digest(token, b"monarch_async " + sender.encode() + transcript, "sha256")


def _checked(info: bytes) -> bytes:
    if len(info) > MAX_INFO:
        raise ValueError(f"handshake info of {len(info)} bytes is over the limit of {MAX_INFO}")
    return info


def _printable(text: bytes) -> str:
    """Decode a stranger's reason so that it can be logged: one line, no control characters."""
    return "".join(c if c.isprintable() else "?" for c in text.decode(errors="replace"))
