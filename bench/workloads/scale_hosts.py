"""A tenth of so many hosts join a running program together, and are lost together: does the client's loop stand still?

On each host live 8 actors of one mesh, and a call of all of them is in flight when the hosts are lost. The agents are
in another process, reached by real TCP, so that what is measured is the client alone. Lost means: sockets close, and
nobody listens there any more; the client redials for its window, which is short here (5 s), then declares them lost.
"""

import asyncio
import time

import scaling
from distant import DistantHosts, distant_hosts, raise_file_limit
from simulated import TOKEN

import monarch_async as ma
from monarch_async.transport.loop import run_loop

PER_HOST = 8


class Member(ma.Actor):
    @ma.endpoint
    async def rank(self) -> int:
        raise AssertionError("simulated workers answer by themselves")

    @ma.endpoint
    async def hang(self) -> None:
        raise AssertionError("simulated workers do not answer this")


async def run(plan: scaling.Plan) -> None:
    raise_file_limit()
    few = plan.size // 10
    window = 1.5 if plan.is_quick else 5.0
    config = ma.Config(heartbeat=window / 5, resume_window=window)
    with distant_hosts(config, set(plan.others)) as distant:
        urls = distant.add(plan.size)
        async with ma.attach(*urls[few:], token=TOKEN, config=config):
            await measure_join(plan, urls[:few])
            await measure_loss(plan, distant, few)


async def measure_join(plan: scaling.Plan, urls: list[str]) -> None:
    cluster = ma.cluster()
    await asyncio.sleep(plan.pause)
    start = time.perf_counter()
    with scaling.Gaps() as gaps:
        await asyncio.gather(*[cluster.join(url) for url in urls])
        took = time.perf_counter() - start
        await asyncio.sleep(plan.pause)
    if len(cluster.hosts) != plan.size:
        raise AssertionError(f"{len(cluster.hosts)} hosts after all have joined, not {plan.size}")
    emit_gaps(plan, "join", gaps, len(urls))
    plan.emit("join_seconds", took, "s", len(urls))


async def measure_loss(plan: scaling.Plan, distant: DistantHosts, few: int) -> None:
    cluster = ma.cluster()
    lost: list[ma.Failure] = []

    async def note(failure: ma.Failure) -> bool:
        lost.append(failure)
        return True

    async with ma.supervise(note):
        procs = await cluster.hosts.spawn_procs({"gpus": PER_HOST})
        members = await procs.spawn("members", Member)
        await members.rank.call()
        call = members.hang.call()
        await asyncio.sleep(plan.pause)
        with scaling.Gaps() as gaps:
            distant.crash_later(few)
            async with asyncio.timeout(60):
                await count_losses(few)
            await asyncio.sleep(plan.pause)
        try:
            await call
        except ma.HostLost:
            pass
        if not lost:
            raise AssertionError("nobody was told of the losses")
        emit_gaps(plan, "lose", gaps, few)
        plan.end()  # or the block would end what is spawned


async def count_losses(expected: int) -> None:
    """Wait until so many hosts are lost."""
    count = 0
    async for event in ma.cluster().events():
        count += event.kind == "lost"
        if count == expected:
            return


def emit_gaps(plan: scaling.Plan, what: str, gaps: scaling.Gaps, n: int) -> None:
    plan.emit(f"{what}_gap", 1e3 * gaps.worst, "ms", n)
    plan.emit(f"{what}_gap_cpu", 1e3 * gaps.worst_cpu, "ms", n)


if __name__ == "__main__":
    run_loop(run(scaling.read_plan()))
