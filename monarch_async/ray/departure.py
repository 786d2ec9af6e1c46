"""How a worker's process ends where the code that runs in it says so: `sys.exit`, `exit_actor`."""

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def run_exit_handlers() -> None:
    """Call what `atexit` was told; a process that others end does not get to that by itself."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()


def end_process(exit: SystemExit) -> NoReturn:
    """End this process as a script would that raises ``exit``."""
    code = exit.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    run_exit_handlers()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
