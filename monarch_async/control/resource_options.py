"""The options of a command that declare what a host has, and the variable that holds the same: see `declared`."""

import argparse
import shlex
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from monarch_async.control.declared import (
    RESOURCES_VARIABLE,
    Declared,
    parse_amount,
    parse_bytes,
    parse_custom,
    parse_gpus,
    parse_label,
)

T = TypeVar("T")

_DESCRIPTION = f"""\
What may be placed here; by default what is found on this machine. {RESOURCES_VARIABLE} may hold these options too.
"""


def add_resource_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    group = parser.add_argument_group("resources", _DESCRIPTION)
    group.add_argument("--cpus", type=_checked(parse_amount), metavar="N", help="may be a fraction")
    group.add_argument(
        "--gpus", type=_checked(parse_gpus), metavar="N|ID,ID",
        help="how many, or the ids that CUDA_VISIBLE_DEVICES takes (of a single one: ID,)",
    )  # fmt: skip
    group.add_argument(
        "--memory", type=_checked(parse_bytes), metavar="SIZE", help="bytes, or 64G, 512M (powers of 1024)"
    )
    group.add_argument(
        "--label", type=_checked(parse_label), action="append", default=[], metavar="NAME=VALUE",
        help="what demands may ask for",
    )  # fmt: skip
    group.add_argument(
        "--resource", type=_checked(parse_custom), action="append", default=[], metavar="NAME=AMOUNT",
        help="anything else that is used up",
    )  # fmt: skip


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return what parses an argument and says what is wrong with it in its own words."""

    def parse_argument(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def declared_by(options: argparse.Namespace) -> Declared:
    """Return what the options say."""
    return Declared(options.cpus, options.gpus, options.memory, dict(options.label), dict(options.resource))


def declared_in(environ: Mapping[str, str]) -> Declared:
    """Return what the environment declares. Raises ValueError."""
    text = environ.get(RESOURCES_VARIABLE, "")

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(f"{RESOURCES_VARIABLE}={text!r}: {message}")

    parser = Parser(add_help=False, allow_abbrev=False)
    add_resource_options(parser)
    return declared_by(parser.parse_args(shlex.split(text)))
