"""``python -m monarch_async.ray script.py args``, or ``-m module args``: run a program of Ray's on this facade.

It is run as Python itself would: as ``__main__``, with its own ``sys.argv`` and its directory first in ``sys.path``;
its exit status, and the traceback of what it raises, are its own. When it ends so does all that it has started.
"""

import os
import runpy
import sys
from types import TracebackType

from monarch_async.ray.install import install

_USAGE = """usage: python -m monarch_async.ray [--sync-on-loop] (script.py | -m module) [arguments]

Run a program that imports ray, with monarch_async.ray in its place.

  --sync-on-loop   plain methods of async actors run on the event loop, as under Ray; otherwise on a thread
"""


def main(arguments: list[str]) -> None:
    """Run what ``arguments`` say. Raises SystemExit."""
    sync_on_loop = arguments[:1] == ["--sync-on-loop"]
    arguments = arguments[sync_on_loop:]
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[is_module:]
    if not arguments or arguments[0].startswith("-"):
        is_help = not is_module and arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, end="", file=sys.stdout if is_help else sys.stderr)
        raise SystemExit(0 if is_help else 2)
    install(sync_on_loop)
    sys.argv[:] = arguments
    try:
        _run(arguments[0], is_module)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = _own_frames_left_out(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        raise SystemExit(1) from None
    finally:
        from monarch_async.ray import shutdown

        shutdown()


def _run(program: str, is_module: bool) -> None:
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(program):
        print(f"{sys.executable}: cannot open {os.path.abspath(program)!r}: there is no such file", file=sys.stderr)
        raise SystemExit(2)
    sys.path[0] = os.path.dirname(os.path.realpath(program))
    runpy.run_path(program, run_name="__main__")


def _own_frames_left_out(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the program's first frame on; all of it where the program was not begun."""
    own, left = (__file__, runpy.__file__, "<frozen runpy>"), frames
    while left is not None and left.tb_frame.f_code.co_filename in own:
        left = left.tb_next
    return left or frames


if __name__ == "__main__":
    main(sys.argv[1:])
