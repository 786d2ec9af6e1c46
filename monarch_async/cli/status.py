"""``monarch-async status``: a table of what hosts are doing."""

import argparse
import asyncio
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_async.cli.tls_arguments import add_tls_arguments, config_of
from monarch_async.config import Config
from monarch_async.control.cluster_token import TOKEN_VARIABLE, read_token
from monarch_async.control.controller import Controller, Requests
from monarch_async.control.host import Host
from monarch_async.errors import Error, HandshakeRefused, LinkBroken
from monarch_async.mesh.local_source import LOCAL_FOLDERS
from monarch_async.mesh.status import Status, fetch_status
from monarch_async.transport.loop import run_loop
from monarch_async.transport.url import Url

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: How long an agent may take to answer.
PATIENCE = 10.0

_DESCRIPTION = """\
Show what hosts are doing: their procs, the actors there, the calls in flight, for how long and who called. Looks only;
nobody notices. Without an address: the hosts of every program of yours on this machine that uses ma.local_hosts().
"""

Target = tuple[Url, bytes]  # an agent's address, and the token for it


def add_command(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser("status", help="show what hosts are doing", description=_DESCRIPTION)
    parser.add_argument("url", nargs="*", metavar="URL", help="of an agent: tls://host:port, tcp://host:port or unix:///path")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"holds the cluster token (by default {TOKEN_VARIABLE} does)"
    )
    add_tls_arguments(parser)
    parser.add_argument("--watch", action="store_true", help="go on showing it, every second, until Ctrl-C")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the table; return the exit status."""
    try:
        targets = named_targets(options.url, options.token_file) if options.url else local_targets()
        may_miss = not options.url  # a program may just be ending
        run_loop(show(targets, options.watch, config_of(options), may_miss))
    except (Error, ValueError) as error:
        print(f"monarch-async status: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0 if options.watch else 130
    return 0


def named_targets(urls: Sequence[str], token_file: str | None) -> list[Target]:
    """Return the agents at these addresses, which share one token. Raises ValueError saying what is wrong."""
    parsed = [Url.parse(url) for url in urls]
    token = read_token(token_file)
    return [(url, token) for url in parsed]


def local_targets() -> list[Target]:
    """Return the agents of this user's programs on this machine. Raises ValueError where there are none."""
    found: list[Target] = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{LOCAL_FOLDERS}*")):
        try:
            if not _is_ours(folder):
                continue
            token = (folder / "token").read_bytes()
        except OSError:  # one that is just ending
            continue
        found += [(Url.parse(f"unix://{path}"), token) for path in sorted(folder.glob("*.sock"))]
    if not found:
        raise ValueError("no program of yours with ma.local_hosts() runs on this machine; to look elsewhere give a URL")
    return found


def _is_ours(folder: Path) -> bool:
    """Anybody may put a folder there, with a token and a socket of his own: what answers would be believed."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


async def show(targets: Sequence[Target], is_watching: bool, config: Config, may_miss: bool = False) -> None:
    """Print the status of these agents, once or again and again.

    Raises Error where one cannot be reached; with ``may_miss`` only where none can.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    async with observing(targets, config, may_miss) as (requests, hosts):
        if not is_watching:
            console.print(await _fetch(requests, hosts))
            return
        with Live(await _fetch(requests, hosts), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(1)
                live.update(await _fetch(requests, hosts), refresh=True)


async def _fetch(requests: Requests, hosts: Sequence[int]) -> Status:
    try:
        async with asyncio.timeout(PATIENCE):
            return await fetch_status(requests, hosts)
    except TimeoutError:
        raise Error(f"no answer within {PATIENCE:g} s") from None


@asynccontextmanager
async def observing(
    targets: Sequence[Target], config: Config, may_miss: bool
) -> AsyncIterator[tuple[Requests, list[int]]]:
    """Join these agents as an observer: one that owns nothing there. Yields what asks them, and their host ids.

    Raises as `show`.
    """
    observer = Controller(config, "status", role="observer")
    try:
        joined = await asyncio.gather(*[_join(observer, url, token) for url, token in targets])
        hosts = [host.id for host in joined if isinstance(host, Host)]
        missed = [why for why in joined if isinstance(why, Error)]
        if missed and not (may_miss and hosts):
            raise missed[0]
        yield observer.requests, hosts
    finally:
        await observer.aclose()


async def _join(observer: Controller, url: Url, token: bytes) -> Host | Error:
    """Join one agent; return why that cannot be, where it cannot."""
    try:
        return await observer.join(url.text, token)
    except LinkBroken as error:
        return Error(f"{url.text}: {error.why}")
    except HandshakeRefused as error:
        return Error(f"{url.text}: {error}")
