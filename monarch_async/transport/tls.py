"""How one process encrypts its TCP connections: whom it trusts, what certificate it shows, what to do where that fails.

A URL says whether a connection is encrypted, ``tls://`` or ``tcp://``; the settings say how. Neither end ever guesses:
with settings for TLS a ``tcp://`` address is refused before it is dialled, and a listener tells a dialler of the other
kind which of the two it wants. The handshake with the cluster token stays inside: TLS hides and protects what is said
and shows who listens, the token says who may.

T1. Who dials checks the certificate of who listens, chain and name. Who listens checks one that it is shown.
T2. A certificate that others would refuse is refused here, at the start: each process that has one first shakes hands
    with itself, in memory. That is also how it learns the name and the end of its own certificate.
T3. Renewed files are taken up with the next connection, with no restart. Bad ones are not: the old certificate stays.
    A CA that is no longer in its file is trusted until the process ends.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused
from monarch_async.transport.url import Url

log = logging.getLogger("monarch_async.tls")

#: A certificate that ends sooner is warned of, where it is loaded, and by agents every day.
NEAR_END = 14 * 86400.0

_DAY = 86400.0

#: `ssl.SSLCertVerificationError.verify_code`, as OpenSSL numbers them.
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_IP = 9, 10, 62, 64
_WRONG_PURPOSE = 26
_UNKNOWN_ISSUER = {2, 18, 19, 20, 21}


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a process knows of its own."""

    name: str  #: one that it is valid for, which others may check
    ends_at: float  #: seconds since 1970


class Tls:
    """Of one process: made from its settings, or around a context that a program brought along.

    A context brought along only dials. Contexts are made on first use, so not where ``tls://`` is never met.
    """

    def __init__(self, config: Config, given: ssl.SSLContext | None = None) -> None:
        """Nothing is read yet."""
        self._cert, self._key, self._ca = config.tls_cert, config.tls_key or config.tls_cert, config.tls_ca
        self._given = given
        self._warned: set[str] = set()
        self._read_at: tuple[float, ...] = ()  # when the files were changed that are in use
        #: Whether TCP must be encrypted: by settings, or as a ``tls://`` address was dialled.
        self.is_on = bool(given or config.tls_cert or config.tls_ca)
        self.has_certificate = bool(config.tls_cert) and given is None

    def check(self, url: Url) -> None:
        """Raise ValueError where an address asks for something else than the settings. TLS is on from the first on."""
        if url.is_tls:
            self.is_on = True
        elif self.is_on and not url.is_unix:
            raise ValueError(
                f"{url.text} is not encrypted, and this process uses TLS{self._by()}: write {_other_scheme(url.text)}"
            )

    def _by(self) -> str:
        settings = {"tls_cert": self._cert, "tls_ca": self._ca}
        named = ", ".join(f"{name}={path}" for name, path in settings.items() if path)
        return f" ({named})" if named else ""

    # -- dialling --------------------------------------------------------------------------------------------------

    @cached_property
    def dialling(self) -> ssl.SSLContext:
        """What connections are dialled with. Raises ValueError where a file is not what it should be."""
        if self._given is not None:
            return self._given
        self._read_at = self._read_at or self._changed_at()
        return self._new(ssl.PROTOCOL_TLS_CLIENT)

    # -- listening -------------------------------------------------------------------------------------------------

    @cached_property
    def listening(self) -> ssl.SSLContext:
        """What connections are taken with. Raises ValueError where there is no certificate, or not a good one."""
        if not self.has_certificate:
            raise ValueError("TLS needs a certificate to listen with: set tls_cert and tls_key")
        self._read_at = self._read_at or self._changed_at()
        context = self._new(ssl.PROTOCOL_TLS_SERVER)
        self.certificate = self._look(context)
        self.warn_of_end()
        return context

    @cached_property
    def certificate(self) -> Certificate:
        """What is shown to others. Raises as `listening`."""
        self.listening  # noqa: B018  which finds it out
        return vars(self)["certificate"]

    def reread(self) -> None:
        """Take up files that have been renewed (T3)."""
        in_use = [vars(self)[name] for name in ("listening", "dialling") if name in vars(self)]
        changed = self._changed_at()
        if self._given is not None or not in_use or changed == self._read_at:
            return
        self._read_at = changed
        try:
            if "listening" in vars(self):
                self.certificate = self._look(self._new(ssl.PROTOCOL_TLS_SERVER))
            else:
                self._new(ssl.PROTOCOL_TLS_CLIENT)
            for context in in_use:
                self._load(context)
        except ValueError as error:
            log.warning("not taking up a renewed certificate, keeping the old one: %s", error)
            return
        log.info("took up the renewed %s", self._cert or self._ca)
        self.warn_of_end()

    def warn_of_end(self) -> None:
        """Log that the certificate ends soon, if one is in use and it does."""
        if "certificate" not in vars(self):
            return
        ends_at = self.certificate.ends_at
        if ends_at - time.time() < NEAR_END:
            log.warning("the TLS certificate %s %s: renew the file, it is taken up at once", self._cert, _ends(ends_at))

    def look_at(self, peer: str, certificate: dict[str, Any] | None) -> None:
        """Log, once, that the certificate that ``peer`` has shown ends soon."""
        if not certificate or peer in self._warned:
            return
        ends_at = ssl.cert_time_to_seconds(certificate["notAfter"])
        if ends_at - time.time() < NEAR_END:
            self._warned.add(peer)
            log.warning("the TLS certificate of %s %s: renew the file there", peer, _ends(ends_at))

    def _changed_at(self) -> tuple[float, ...]:
        with contextlib.suppress(OSError):  # in the middle of a renewal
            return tuple(os.stat(path).st_mtime for path in (self._cert, self._key, self._ca) if path)
        return self._read_at

    # -- contexts --------------------------------------------------------------------------------------------------

    def _new(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.verify_mode = ssl.CERT_OPTIONAL if self._ca else ssl.CERT_NONE
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            if self._ca:
                context.load_verify_locations(self._ca)
            else:
                context.load_default_certs()
        except FileNotFoundError:
            raise ValueError(f"tls_ca={self._ca}: no such file") from None
        except OSError as error:  # also what OpenSSL raises
            raise ValueError(
                f"tls_ca={self._ca} cannot be read as PEM certificates of the CAs to trust: {_reason(error)}"
            ) from None
        if self.has_certificate:
            self._load_certificate(context)

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        for name, path in (("tls_cert", self._cert), ("tls_key", self._key)):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{name}={path} cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(self._cert, self._key, _no_password(self._key))
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError(f"tls_key={self._key} is not the key of the certificate {self._cert}") from None
            raise ValueError(
                f"tls_cert={self._cert} and tls_key={self._key} cannot be read as a PEM certificate, with those "
                f"between it and its CA, and its private key: {_reason(error)}"
            ) from None

    def _look(self, context: ssl.SSLContext) -> Certificate:
        """Look at our own certificate through the eyes of those who trust the same CAs (T2)."""
        trusting = self._new(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        try:
            found = _shake_own_hands(context, trusting)
        except ssl.SSLError as error:
            why = self._complaint(error, f"the certificate tls_cert={self._cert}")
            raise ValueError(f"others would refuse us: {why}") from None
        names = [value for kind, value in found.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        if not names:
            raise ValueError(f"tls_cert={self._cert} has no subjectAltName: it must say DNS:... or IP:... of this host")
        return Certificate(names[0].replace("*", "any"), ssl.cert_time_to_seconds(found["notAfter"]))

    # -- what went wrong -------------------------------------------------------------------------------------------

    def refusal(self, error: Exception | None, peer: str, name: str = "") -> HandshakeRefused:
        """Return what a failed TLS handshake with ``peer`` means, and what to do. ``name``: what it was dialled by."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return HandshakeRefused(self._complaint(error, f"the certificate of {peer}", name))
        reason = getattr(error, "reason", None) or ""
        if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason or "HTTP_REQUEST" in reason:
            return HandshakeRefused(
                f"{peer} does not speak TLS: dial it by tcp://, or start its agent with --tls-cert and --tls-key"
            )
        if "ALERT" in reason:
            ours = f"our certificate {self._cert}" if self.has_certificate else "us, who showed no certificate"
            said = reason.split("ALERT_", 1)[-1].replace("_", " ").lower()
            what = f"{peer} does not accept {ours} ({said}): it must be signed by what the other end's tls_ca holds"
            return HandshakeRefused(what, "remote")
        if error is None or isinstance(error, ConnectionError):  # the loops do not send the reason before they close
            ours = f"perhaps it does not accept our certificate {self._cert}; " if self.has_certificate else ""
            return HandshakeRefused(f"{peer} closed the connection ({ours}its log says why)", "remote")
        return HandshakeRefused(f"no TLS with {peer}: {_reason(error)}", "remote")

    def _complaint(self, error: ssl.SSLError, what: str, name: str = "") -> str:
        trusted = f"tls_ca={self._ca}" if self._ca else "the CAs of this system (tls_ca is not set)"
        if not isinstance(error, ssl.SSLCertVerificationError):
            return f"{what} is of no use: {_reason(error)}"
        match error.verify_code:
            case code if code in _UNKNOWN_ISSUER:
                return f"{what} is not signed by {trusted}: use the CA that signed it, or have it signed by that one"
            case code if code == _EXPIRED:
                return f"{what}, or one that signed it, has expired: renew its file"
            case code if code == _NOT_YET_VALID:
                return f"{what} is not valid yet: look at the clocks of both machines"
            case code if code in (_OTHER_NAME, _OTHER_IP):
                missing = f"{'IP' if code == _OTHER_IP else 'DNS'}:{name}"
                return f"{what} is not for {name}: dial it by a name in its subjectAltName, or add {missing} there"
            case code if code == _WRONG_PURPOSE:
                return f"{what} may not be used so: its extendedKeyUsage must allow serverAuth and clientAuth"
            case _:
                return f"{what} does not verify against {trusted}: {error.verify_message}"


@contextlib.asynccontextmanager
async def warning_of_end(tls: Tls) -> AsyncIterator[None]:
    """Look every day, while the block runs, whether a certificate that is in use ends soon or has been renewed."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(_DAY, look)
        tls.reread()
        tls.warn_of_end()

    timer = loop.call_later(_DAY, look)
    try:
        yield
    finally:
        timer.cancel()


def _shake_own_hands(listening: ssl.SSLContext, dialling: ssl.SSLContext) -> dict[str, Any]:
    """Return what the dialling end sees of the other's certificate. Raises SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = dialling.wrap_bio(back, there)
    listener = listening.wrap_bio(there, back, server_side=True)
    waiting = [dialler, listener]
    while waiting:
        for end in [*waiting]:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                waiting.remove(end)
    return dict(dialler.getpeercert() or {})


def _no_password(key: str) -> Any:
    def ask() -> str:
        raise ValueError(f"tls_key={key} is encrypted: nobody is here to type its password, store it without one")

    return ask


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).replace("_", " ").lower()


def _ends(ends_at: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends_at))
    left = ends_at - time.time()
    return f"has ended on {when}" if left <= 0 else f"ends in {left / _DAY:.1f} days, on {when}"


def _other_scheme(text: str) -> str:
    return "tls://" + text.removeprefix("tcp://")
