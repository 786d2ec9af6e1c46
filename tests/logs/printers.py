"""An actor that prints in every way there is."""

import ctypes
import os
import sys
import threading

import monarch_async as ma

libc = ctypes.CDLL(None)


class Printer(ma.Actor):
    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def say(self, *lines: str, to: int = 1) -> None:
        for line in lines:
            print(line, file=sys.stdout if to == 1 else sys.stderr)

    @ma.endpoint
    async def write(self, data: bytes, to: int = 1) -> None:
        while data:
            data = data[os.write(to, data) :]

    @ma.endpoint
    async def in_every_way(self) -> None:
        """In this order, to stdout."""
        print("from print")
        libc.printf(b"from C\n")
        os.write(1, b"from write\n")
        sys.stdout.write("from stdout\n")
        print("no line end", end="", flush=True)
        os.write(1, b", now it ends\n")
        os.system("echo from a child")  # noqa: ASYNC221
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()

    @ma.endpoint
    async def count_to(self, n: int) -> None:
        for index in range(n):
            print(f"line {index}")

    @ma.endpoint
    def count_and_say_how_far(self, n: int, path: str) -> None:
        """Print long lines, and write to a file how many were printed."""
        with open(path, "w") as file:
            for index in range(n):
                print(f"line {index:8} " + "x" * 1000)
                file.seek(0)
                file.write(str(index + 1))
                file.flush()

    @ma.endpoint
    async def say_and_die(self, *lines: str) -> None:
        print("\n".join(lines), end="", flush=True)
        sys.stderr.write("\n".join(f"error {line}" for line in lines))
        sys.stderr.flush()
        os._exit(3)

    @ma.endpoint
    async def say_and_crash(self) -> None:
        for index in range(3000):
            os.write(1, f"line {index}\n".encode())
        ctypes.string_at(0)

    async def teardown(self) -> None:
        print("last words")
        sys.stdout.write("and no line end")
