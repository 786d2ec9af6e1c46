"""``monarch-async agent``: a host agent that is started by hand, or by whatever starts things on this machine."""

import argparse
import logging
import socket
import sys
from typing import TYPE_CHECKING

from monarch_async.cli.tls_arguments import add_tls_arguments, config_of
from monarch_async.control.agent_process import serve_agent
from monarch_async.control.cluster_token import TOKEN_VARIABLE, take_token
from monarch_async.control.resource_options import add_resource_options, declared_by
from monarch_async.errors import Error
from monarch_async.transport.loop import run_loop
from monarch_async.transport.url import Url

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = f"""\
Be the host agent of this machine: start, watch and end the worker procs of the
programs that attach to it, as ma.attach("tcp://host:port", ...) does. Prints
its address; logs on stderr who comes, who goes, and who is refused and why.
Ends on SIGINT or SIGTERM, and its procs with it.

Whoever attaches must hold the same cluster token: a file of mode 0600, or the
variable {TOKEN_VARIABLE}. To make one:

    (umask 077; openssl rand -hex 32 > cluster.token)

Connections are authenticated; on tls:// they are encrypted as well, with a
certificate of this host (its subjectAltName names the host as others dial it):

    monarch-async agent --listen tls://host-07:7700 \\
        --tls-cert host-07.pem --tls-key host-07.key --tls-ca ca.pem

Tensors then go by TLS too, between all machines. Renewed files are taken up
with the next connection.
"""


def add_command(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "agent",
        help="be the host agent of this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="URL",
        help="tls://host:port, tcp://host:port (port 0: any free one) or unix:///absolute/path (one on 127.0.0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"holds the cluster token (by default {TOKEN_VARIABLE} does)"
    )
    parser.add_argument("--name", help="of this host, in messages and tables (its host name)")
    parser.add_argument(
        "--preload", nargs="+", default=[], metavar="MODULE", help="import these once, before procs are forked: torch"
    )
    add_tls_arguments(parser)
    add_resource_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit status."""
    name = options.name or socket.gethostname()
    try:
        config = config_of(options)
        url = Url.parse(options.listen or Url.inet("127.0.0.1", 0, bool(config.tls_cert)).text)
        token = _token(url, options.token_file)
    except ValueError as error:
        return _complain(error)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        run_loop(serve_agent(url.text, token, name, options.preload, config=config, declared=declared_by(options)))
    except (Error, ValueError) as error:
        return _complain(error)
    except OSError as error:
        return _complain(f"cannot listen on {url.text}: {error.strerror or error}")
    logging.info("agent %s ended", name)
    return 0


def _token(url: Url, path: str | None) -> bytes:
    try:
        return take_token(path)
    except ValueError as error:
        if path is not None or url.is_local_only:
            raise
        raise ValueError(f"{error}; {url.text} can be reached from other machines") from None


def _complain(what: object) -> int:
    print(f"monarch-async agent: {what}", file=sys.stderr)
    return 1
