"""A driver that does what it is told; run as a program: ``lasting.py ADDRESS NAMESPACE``, with expressions on stdin."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import monarch_async.ray as ray


class Plain:
    """Counts."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.others: list[Any] = []

    def add(self, more: int) -> int:
        self.count += more
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def hold(self, *others: Any) -> None:
        self.others += others

    def add_to_other(self, more: int) -> int:
        return ray.get(self.others[0].add.remote(more))

    def leave(self) -> None:
        ray.actor.exit_actor()

    def ask_when_told(self, folder: str, *asked: str) -> None:
        """Once there is a file ``go``, evaluate these; ``said`` has what came of it then."""

        def run() -> None:
            while not Path(folder, "go").exists():
                time.sleep(0.01)
            said = [outcome(code, {**globals(), "self": self}).split(":")[0] for code in asked]
            Path(folder, "part").write_text(" ".join(said))
            Path(folder, "part").rename(Path(folder, "said"))

        threading.Thread(target=run).start()

    def me(self) -> Any:
        return ray.get_runtime_context().current_actor

    def by_task(self, value: int) -> int:
        return ray.get(double.remote(value))

    def by_name(self, name: str) -> int:
        return ray.get(ray.get_actor(name).add.remote(1))

    def is_restarted(self) -> bool:
        return ray.get_runtime_context().was_current_actor_reconstructed

    def devices(self) -> tuple[str | None, str | None]:
        return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("RANK")

    def wait(self, seconds: float) -> str:
        time.sleep(seconds)
        return "waited"


class Slow(Plain):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(1)


class Async:
    """Counts, on its loop."""

    def __init__(self) -> None:
        self.count = 0

    async def add(self, more: int) -> int:
        await asyncio.sleep(0)
        self.count += more
        return self.count


@ray.remote
def double(value: int) -> int:
    return 2 * value


def counter(name: str | None, cls: type = Plain, *args: Any, **options: Any) -> Any:
    """Make a detached one."""
    return ray.remote(cls).options(name=name, lifetime="detached", **options).remote(*args)


def outcome(code: str, known: dict[str, Any]) -> str:
    try:
        value = eval(code, known)
        return repr(ray.get(value) if isinstance(value, ray.ObjectRef) else value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(address: str, namespace: str) -> None:
    ray.init(address=address, namespace=namespace)
    known: dict[str, Any] = {**globals(), "get": ray.get_actor}
    known["known"] = known
    for line in sys.stdin:
        print(outcome(line, known).replace("\n", " "), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    from lasting import main  # under the name that others know it by

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(*sys.argv[1:])
