"""Gangs placed on so many simulated hosts and released again, one after the other: client and agents on one core.

Each gang has 4 to 8 bundles on as many hosts; it is waited for until every agent has booked its part. Before that, 32
gangs are placed that stay, so that the books are not empty.
"""

import random
import statistics
import time

import scaling
from simulated import TOKEN, SimulatedHosts

import monarch_async as ma
from monarch_async.transport.loop import run_loop

STAY = 32


def gang(dice: random.Random) -> ma.Demand:
    """4 to 8 bundles of one cpu each, no two on one host."""
    return ma.Demand([ma.Bundle(cpus=1)] * dice.randint(4, 8), strategy="strict_spread", name="gang")


async def run(plan: scaling.Plan) -> None:
    rounds, dice = 100 if plan.is_quick else 1000, random.Random(0)
    async with SimulatedHosts(ma.Config()) as simulated:
        await simulated.add(plan.size)
        async with ma.attach(*simulated.urls, token=TOKEN):
            cluster = ma.cluster()
            for _ in range(min(STAY, plan.size // 2)):
                await cluster.place(gang(dice))
            seconds: list[float] = []
            cpu = time.process_time()
            for _ in range(rounds):
                start = time.perf_counter()
                placement = await cluster.place(gang(dice))
                await placement.release()
                seconds.append(time.perf_counter() - start)
            cpu = time.process_time() - cpu
            plan.emit("gangs", rounds / sum(seconds), "rounds/s", rounds)
            plan.emit("gangs_worst", 1e3 * max(seconds), "ms", rounds)
            plan.emit("gangs_median", 1e3 * statistics.median(seconds), "ms", rounds)
            plan.emit("gangs_cpu", rounds / cpu, "rounds/s", rounds)
            plan.end()


if __name__ == "__main__":
    run_loop(run(scaling.read_plan()))
