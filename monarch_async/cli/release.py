"""``monarch-async release``: end procs that have outlived their program."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_async.cli.status import Target, named_targets, observing
from monarch_async.cli.tls_arguments import add_tls_arguments, config_of
from monarch_async.config import Config
from monarch_async.control.cluster_token import TOKEN_VARIABLE
from monarch_async.errors import Error, NoSuchLease
from monarch_async.ids import AGENT, address
from monarch_async.transport.loop import run_loop

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = """\
End a detached lease that no program holds: its procs are stopped in order, on all hosts that are named, and its name is
free again. One that a program holds is that program's to release. `monarch-async status URL` shows which there are.
"""


def add_command(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "release", help="end procs that have outlived their program", description=_DESCRIPTION
    )
    parser.add_argument("name", metavar="NAME", help="what the procs were detached as")
    parser.add_argument("url", nargs="+", metavar="URL", help="of the agent of each host that has some")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"holds the cluster token (by default {TOKEN_VARIABLE} does)"
    )
    add_tls_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Release it; return the exit status."""
    try:
        config = config_of(options)
        ended = run_loop(release(options.name, named_targets(options.url, options.token_file), config))
    except (Error, ValueError) as error:
        print(f"monarch-async release: {error}", file=sys.stderr)
        return 1
    print(f"released {options.name} on {ended} host{'s' if ended > 1 else ''}")
    return 0


async def release(name: str, targets: Sequence[Target], config: Config) -> int:
    """End a lease on all these hosts; return how many had it. Waits until its procs are gone.

    Raises NoSuchLease where none has it, LeaseHeld where a program holds it; nothing is ended on that host then.
    """
    async with observing(targets, config, may_miss=False) as (requests, hosts):
        asked = [
            requests.ask(address(host, AGENT), "lease_release", name, "it was released by hand", config.stop_grace)
            for host in hosts
        ]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    missing = [outcome for outcome in outcomes if isinstance(outcome, NoSuchLease)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, NoSuchLease):
            raise outcome
    if len(missing) == len(outcomes):
        raise NoSuchLease(name, tuple(sorted({known for error in missing for known in error.known})))
    return len(outcomes) - len(missing)
