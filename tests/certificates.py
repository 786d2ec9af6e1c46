"""A certificate authority for tests, and what it signs: files as `ma.Config` names them."""

import datetime
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trustme

import monarch_async as ma


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in files, and the CA's."""

    cert: Path
    key: Path
    ca: Path

    def config(self, **settings: object) -> ma.Config:
        return ma.Config(tls_cert=str(self.cert), tls_key=str(self.key), tls_ca=str(self.ca), **settings)  # type: ignore[arg-type]

    def client(self, **settings: object) -> ma.Config:
        """Of who trusts the CA and shows no certificate."""
        return ma.Config(tls_ca=str(self.ca), **settings)  # type: ignore[arg-type]


class Authority:
    """A CA whose files are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._ca, self._folder, self._count = trustme.CA(), folder, 0
        folder.mkdir(exist_ok=True)
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str, days: float = 30, starts_in_days: float = -1) -> Issued:
        """Sign a certificate for names or addresses (127.0.0.1), whose end is so many days from now."""
        self._count += 1
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        begin = now + min(starts_in_days, days - 1) * day
        leaf = self._ca.issue_cert(*(names or ("127.0.0.1",)), not_before=begin, not_after=now + days * day)
        issued = Issued(self._folder / f"{self._count}.pem", self._folder / f"{self._count}.key", self.file)
        self.write(leaf, issued)
        return issued

    def renew(self, issued: Issued, *names: str) -> None:
        """Write another certificate to the same files."""
        self.write(self._ca.issue_cert(*(names or ("127.0.0.1",))), issued)

    @staticmethod
    def write(leaf: trustme.LeafCert, to: Issued) -> None:
        to.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(to.key))


def tls_record_length(data: bytes | bytearray | memoryview, offset: int = 0) -> int | None:
    """Frames of a `FaultProxy` on a line that is encrypted: records."""
    return 5 + int.from_bytes(data[offset + 3 : offset + 5], "big") if len(data) - offset >= 5 else None


def own_name() -> str:
    """A name of this machine that is resolved without asking anybody."""
    with suppress(OSError):
        if socket.gethostbyname("localhost") == "127.0.0.1":
            return "localhost"
    return "127.0.0.1"
