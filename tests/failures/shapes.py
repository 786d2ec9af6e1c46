"""Actors that fail to come up, and values that fail to travel. Apart from the tests: workers import them."""

import asyncio
import os
import threading

import monarch_async as ma


class Picky(ma.Actor):
    """Fails to come up where it is told to."""

    def __init__(self, where: str = "", ranks: tuple[int, ...] = (1,), kind: str = "value") -> None:
        self.where, self.kind = where, kind
        self.is_chosen = ma.context().rank in ranks
        if where == "__init__" and self.is_chosen:
            self.fail()

    def fail(self) -> None:
        match self.kind:
            case "value":
                raise ValueError("no such model")
            case "exit":
                raise SystemExit(2)
            case "cancelled":
                raise asyncio.CancelledError
            case "stop_iteration":
                raise StopIteration
            case "no_text":
                raise NoText

    async def setup(self) -> None:
        await asyncio.sleep(0)
        if self.where == "setup" and self.is_chosen:
            self.fail()

    @ma.endpoint
    async def where_am_i(self) -> int:
        return ma.context().rank


class PickyOnThread(Picky):
    """The same, constructed on the actor's own thread."""

    @ma.endpoint
    def thread_rank(self) -> int:
        return ma.context().rank


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Slow(ma.Actor):
    """Comes up when it is told to, by a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def setup(self) -> None:
        while not os.path.exists(self.path):
            await asyncio.sleep(0.005)
        raise OSError(f"{self.path} is empty")

    @ma.endpoint
    async def where_am_i(self) -> int:
        return ma.context().rank


class FromFile(ma.Actor):
    """Fails while the file is there."""

    def __init__(self, path: str) -> None:
        if os.path.exists(path):
            raise OSError(f"{path} is there")

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()


class OnlyHere:
    """Pickles in one process and cannot be rebuilt in another."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise OSError("made in another process")
        self.__dict__.update(state)


class Porter(ma.Actor):
    """Takes and returns things."""

    @ma.endpoint
    async def take(self, value: object, **more: object) -> None: ...

    @ma.endpoint
    async def locked(self) -> object:
        return {"model": [1, {"lock": threading.Lock()}]}

    @ma.endpoint
    def locked_on_thread(self) -> object:
        return threading.Lock()

    @ma.endpoint
    async def locked_items(self):
        yield 1
        yield threading.Lock()

    @ma.endpoint
    async def only_here(self) -> object:
        return OnlyHere()

    @ma.endpoint
    async def only_here_items(self):
        yield 1
        yield OnlyHere()
        yield 2

    @ma.endpoint
    async def sends_a_lock_on(self, other: "Porter") -> None:
        await other.take.call_one(threading.Lock())

    @ma.endpoint
    async def alive(self) -> bool:
        return True
