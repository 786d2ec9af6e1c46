"""The arguments that commands have in common for TLS: files, which may also be named in the environment."""

import argparse
import os
from dataclasses import replace

from monarch_async.config import Config

_FILES = {
    "tls_cert": "certificate that this end shows, and those between it and its CA, as PEM",
    "tls_key": "private key of that certificate, as PEM without a password (by default in the same file)",
    "tls_ca": "certificates of the CAs that sign those of the other ends, as PEM (by default the system's)",
}


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--tls-cert``, ``--tls-key`` and ``--tls-ca``."""
    for name, what in _FILES.items():
        variable = f"MONARCH_ASYNC_{name.upper()}"
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", help=f"{what}; or {variable}")


def config_of(options: argparse.Namespace) -> Config:
    """Return the settings of the environment and these arguments. Raises ValueError saying what is wrong."""
    named = {name: os.path.abspath(path) for name in _FILES if (path := getattr(options, name))}
    return replace(Config.from_env(), **named)
