"""A cast to 32 actors on each of so many simulated hosts, and all their answers: client and agents on one core."""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import scaling
from simulated import TOKEN, SimulatedHosts

import monarch_async as ma
from monarch_async.runtime.router import active_router
from monarch_async.transport.loop import run_loop

PER_HOST = 32


class Member(ma.Actor):
    @ma.endpoint
    async def rank(self) -> int:
        raise AssertionError("simulated workers answer by themselves")


class ClientShare:
    """Seconds of processor time that the client took for replies. (Sending is timed where it is done.)"""

    def __init__(self) -> None:
        router = active_router()
        self.seconds = 0.0
        router.feed = self._timed(router.feed)  # type: ignore[method-assign]

    def _timed(self, feed: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return feed(*arguments)
            finally:
                self.seconds += time.thread_time() - start

        return timed


async def run(plan: scaling.Plan) -> None:
    hosts, repeats = plan.size, 3 if plan.is_quick else 9
    everyone = tuple(range(hosts * PER_HOST))
    walls, processor, client = [], [], []
    start = time.perf_counter()
    async with SimulatedHosts(ma.Config()) as simulated:
        await simulated.add(hosts)
        async with ma.attach(*simulated.urls, token=TOKEN) as mesh_of_hosts:
            attached = time.perf_counter()
            procs = await mesh_of_hosts.spawn_procs({"gpus": PER_HOST})
            members = await procs.spawn("members", Member)
            spawned = time.perf_counter()
            share = ClientShare()
            for turn in range(repeats + 2):  # of which the first two warm up
                share.seconds = 0.0
                wall, cpu = time.perf_counter(), time.process_time()
                call = members.rank.call()
                sent = time.process_time() - cpu
                answers = await call
                if turn > 1:
                    walls.append(time.perf_counter() - wall)
                    processor.append(time.process_time() - cpu)
                    client.append(share.seconds + sent)
                if answers.values() != everyone:
                    raise AssertionError("not every actor has answered, or not in its place")
                await asyncio.sleep(0)
            size = len(everyone)
            plan.emit("cast", statistics.median(walls), "s", size)
            plan.emit("cast_worst", max(walls), "s", repeats)
            plan.emit("cast_cpu", statistics.median(processor), "s", size)
            plan.emit("cast_client_cpu", statistics.median(client), "s", size)
            plan.emit("cast_attach", attached - start, "s", hosts)
            plan.emit("cast_spawn", spawned - attached, "s", size)
            plan.end()


if __name__ == "__main__":
    run_loop(run(scaling.read_plan()))
