"""The imports a zygote does once for all its workers, and the check that it may be forked after them."""

import gc
import importlib
import importlib.util
import sys
import threading
import traceback

import monarch_async

#: imported before the preload modules, where installed
WORKER_MODULES = ("msgpack", "cloudpickle", "uvloop", "monarch_async.mesh.worker")


def prepare(modules: list[str], sys_path: list[str]) -> None:
    """Import what workers need, and check that forking is safe.

    Raises:
        RuntimeError: an import failed (with its traceback), or left the process unfit to be forked.
    """
    sys.path += [path for path in sys_path if path not in sys.path]
    for name in WORKER_MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    for name in monarch_async.__all__:  # is imported when it is first used, by any module of a user's: once, for all
        getattr(monarch_async, name)
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException:
            raise RuntimeError(f"preload module {name} failed to import:\n{traceback.format_exc()}") from None
        if threading.active_count() > 1:
            names = ", ".join(thread.name for thread in threading.enumerate()[1:])
            raise RuntimeError(
                f"preload module {name} started threads ({names}); forking would be unsafe: use start='spawn'"
            )
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise RuntimeError(
                f"preload module {name} initialised CUDA, which does not survive a fork: use start='spawn'"
            )
    gc.collect()
    gc.freeze()  # so that no collection in a child writes to, and thereby copies, the pages they share
