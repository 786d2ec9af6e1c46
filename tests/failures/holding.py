"""A program that attaches, holds cpus of a host, says so, and stays."""

import asyncio
import sys

import monarch_async as ma


async def main(url: str, token: str, cpus: int) -> None:
    async with ma.attach(url, token=token):
        async with ma.cluster().place(ma.Demand([ma.Bundle()] * cpus, name="theirs")) as placement:
            await placement.spawn_procs()
            print("holds", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("released", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    ma.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
