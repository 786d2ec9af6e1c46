"""The program a client starts as its host agent: ``python -m monarch_async.control.local_agent``."""

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch_async.control.agent_process import serve_agent
from monarch_async.control.cluster_token import take_token
from monarch_async.control.resource_options import add_resource_options, declared_by
from monarch_async.errors import Error
from monarch_async.transport.loop import run_loop
from monarch_async.transport.url import Url


def main(arguments: Sequence[str]) -> int:
    """Run the agent of a client: ``--lifeline FD --listen URL --name NAME [--preload MODULE ...]``, and resources."""
    parser = argparse.ArgumentParser(prog="monarch_async.control.local_agent")
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--preload", nargs="*", default=[])
    parser.add_argument("--share", nargs=2, type=int, default=(0, 1), metavar=("I", "N"))
    add_resource_options(parser)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format=f"agent {options.name}: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(options.lifeline, False)
    lifeline = socket.socket(fileno=options.lifeline)
    token = take_token(None)
    try:
        run_loop(
            serve_agent(
                options.listen,
                token,
                options.name,
                options.preload,
                lifeline,
                declared=declared_by(options),
                share=tuple(options.share),
            )
        )
    except (Error, OSError, ValueError) as error:
        try:
            lifeline.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        except OSError:
            pass
        return 1
    finally:
        _tidy(Path(Url.parse(options.listen).path).parent)
    return 0


def _tidy(folder: Path) -> None:
    """The last agent of a client that could not do it itself removes the folder of their sockets and token."""
    with contextlib.suppress(OSError):
        if not list(folder.glob("*.sock")):
            (folder / "token").unlink(missing_ok=True)
            folder.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
