"""So many one-cpu tasks over 64 simulated hosts of 8 cpus: client and agents on one core, workers that answer at once.

What is measured is all that a task costs but its own work: arguments pickled, a worker chosen, the call there by way of
its agent, the answer unpickled, the next task sent. Cold: the pool has no worker when the first task is submitted, and
leases 512 of them meanwhile. Warm: the same again.
"""

import asyncio
import pickle
import time

import scaling
from simulated import TOKEN, SimulatedHosts

import monarch_async as ma
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.loop import run_loop

HOSTS, CPUS = 64, 8
ANSWER = b"an answer"


def work(number: int) -> bytes:
    raise AssertionError("simulated workers answer by themselves")


def answer(rank: int, endpoint: str, arguments: bytes) -> bytes:
    """What a `TaskRunner` answers: the result of a task, or nothing to `learn` and `ping`."""
    return _RESULT if endpoint in ("run", "run_coroutine") else _NONE


_RESULT, _NONE = pickle.dumps(ANSWER, 5), pickle.dumps(None, 5)


async def submit_all(count: int) -> tuple[float, float]:
    """Seconds by the clock, and of processor time, until all are done."""
    wall, cpu = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*[ma.submit(work, number) for number in range(count)])
    if results != [ANSWER] * count:
        raise AssertionError("a task brought something else")
    return time.perf_counter() - wall, time.process_time() - cpu


async def run(plan: scaling.Plan) -> None:
    resources = Resources(cpus=CPUS)
    async with SimulatedHosts(ma.Config(), resources, answer=answer) as simulated:
        await simulated.add(HOSTS)
        async with ma.attach(*simulated.urls, token=TOKEN):
            cold, cold_cpu = await submit_all(plan.size)
            warm, warm_cpu = min([await submit_all(plan.size) for _ in range(1 if plan.is_quick else 3)])
            plan.emit("tasks", plan.size / warm, "tasks/s", plan.size)
            plan.emit("tasks_cpu", plan.size / warm_cpu, "tasks/s", plan.size)
            plan.emit("tasks_cold", plan.size / cold, "tasks/s", plan.size)
            plan.emit("tasks_cold_cpu", plan.size / cold_cpu, "tasks/s", plan.size)
            plan.end()


if __name__ == "__main__":
    run_loop(run(scaling.read_plan()))
