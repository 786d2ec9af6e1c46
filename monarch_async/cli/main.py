"""The entry of ``monarch-async``: its arguments, and which command runs."""

import argparse
import sys
from collections.abc import Sequence

from monarch_async.cli import agent, release, status
from monarch_async.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status. Ends by SystemExit where arguments are wrong, or ask for help."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["demo"]:  # it has arguments of its own
        return run_demo(arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="monarch-async", description="Meshes of hosts, processes and actors.")
    parser.add_argument("--version", action="version", version=f"monarch-async {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    agent.add_command(commands)
    status.add_command(commands)
    release.add_command(commands)
    commands.add_parser("demo", help="asynchronous reinforcement learning on this machine", add_help=False)
    return parser


def run_demo(arguments: Sequence[str]) -> int:
    """Run ``examples/async_rl.py``, which is installed as `monarch_async.examples.async_rl`."""
    try:
        from monarch_async.examples import async_rl
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("monarch_async"):
            raise
        print(f"monarch-async demo needs {error.name}: pip install 'monarch-async[demo]'", file=sys.stderr)
        return 1
    sys.argv[0] = "monarch-async demo"  # what its --help calls it
    return async_rl.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
