"""What the heartbeats of so many hosts cost a client that does nothing: its process's processor time, kernel included.

The agents are in another process, on another core; between them is real TCP. Measured once more without a second
process, with `inproc` instead of the kernel: what client and all agents together cost but for their sockets.
"""

import asyncio
import time

import scaling
from distant import distant_hosts, raise_file_limit
from simulated import TOKEN, SimulatedHosts

import monarch_async as ma
from monarch_async.transport.loop import run_loop

CONFIG = ma.Config()


async def idle(plan: scaling.Plan) -> tuple[float, scaling.Gaps]:
    """Percent of a core that this process takes while nothing happens; how long its loop was busy at a time."""
    await asyncio.sleep(plan.pause if plan.is_quick else 2 * CONFIG.heartbeat)
    with scaling.Gaps() as gaps:  # its timer costs something itself: it is not there while the processor time is taken
        await asyncio.sleep(plan.pause)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(3 * plan.pause if plan.is_quick else 5 * CONFIG.heartbeat)
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - wall), gaps


async def run(plan: scaling.Plan) -> None:
    async with SimulatedHosts(CONFIG) as simulated:
        await simulated.add(plan.size)
        async with ma.attach(*simulated.urls, token=TOKEN):
            percent, _ = await idle(plan)
            plan.emit("idle_all", percent, "% of a core", plan.size)


async def run_distant(plan: scaling.Plan) -> None:
    raise_file_limit()
    with distant_hosts(CONFIG, set(plan.others)) as distant:
        async with ma.attach(*distant.add(plan.size), token=TOKEN):
            percent, gaps = await idle(plan)
            plan.emit("idle", percent, "% of a core", plan.size)
            plan.emit("idle_gap", 1e3 * gaps.worst, "ms", plan.size)
            plan.end()


if __name__ == "__main__":
    plan = scaling.read_plan()
    run_loop(run(plan))
    run_loop(run_distant(plan))
