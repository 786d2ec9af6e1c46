"""Three hosts, every kind of work, and something that fails every few hundred milliseconds.

``MONARCH_ASYNC_CHAOS_SEED`` and ``MONARCH_ASYNC_CHAOS_SECONDS`` say which run, and how long; the seed is printed. The
same seed makes the same choices; what they meet depends on the machine. In the end, when all is healed:

C1. Everything ended in a right value or an error of `ma.Error`, in time (see `labours`).
C2. All three hosts are back, and work.
C3. Nothing is held: no placement, no lock, no object, no proc; nothing waits.
C4. Nothing is left: no process, no shared memory, no descriptor.
"""

import asyncio
import gc
import os
import random
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from agents import TOKEN
from chronicle import Chronicle
from havoc import Havoc, Site, marked
from labours import Clerk, Labours

import monarch_async as ma
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.router import Router, active_router

WINDOW = 2.0
CONFIG = ma.Config(
    resume_window=WINDOW, heartbeat=0.25, stop_grace=1.0, cancel_grace=2.0, bulk_retries=2.0, block_warning=100.0,
    warn_after=30.0, task_idle=1.0, store_bytes=256 << 20,
)  # fmt: skip

#: Of an agent without procs, with its client, two peers, zygotes, and the data plane.
MOST_DESCRIPTORS = 60

SECONDS = float(os.environ.get("MONARCH_ASYNC_CHAOS_SECONDS", "60"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
async def test_whatever_fails(tmp_path: Path) -> None:
    seed = int(os.environ.get("MONARCH_ASYNC_CHAOS_SEED") or random.randrange(1 << 31))
    print(f"MONARCH_ASYNC_CHAOS_SEED={seed}")
    await chaos(seed, SECONDS, tmp_path / "chronicle")


async def chaos(seed: int, seconds: float, log: Path) -> None:
    chronicle, mark = Chronicle(log), uuid.uuid4().hex
    try:
        async with AsyncExitStack() as stack:
            sites = [await stack.enter_async_context(Site(name, CONFIG, chronicle, mark)) for name in "abc"]
            async with ma.attach(*[site.proxy.url for site in sites], token=TOKEN, config=CONFIG) as hosts:
                assert len(hosts.hosts) == 3
                async with ma.supervise(ma.ignore):
                    await _run(sites, random.Random(seed), seconds, chronicle)
        await _wait(lambda: not marked(mark), 10, lambda: f"C4: processes left: {marked(mark)}")
    except BaseException:
        print(f"MONARCH_ASYNC_CHAOS_SEED={seed} failed; all of it is in {chronicle.path}; its end:\n{chronicle.tail()}")
        raise
    finally:
        chronicle.close()


async def _run(sites: list[Site], dice: random.Random, seconds: float, chronicle: Chronicle) -> None:
    labours = Labours(dice, chronicle)
    havoc = Havoc(sites, dice, chronicle, WINDOW)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(labours.run())
        await havoc.run(seconds)
        chronicle.note("no more faults")
        labours.stop()
        await work
    chronicle.note(f"faults {havoc.counts}, done {dict(labours.done)}, failed {dict(labours.failed)}")
    print(f"faults {havoc.counts}\ndone {dict(labours.done)}\nerrors {dict(labours.failed)}")
    for site in sites:
        site.heal()
    await _check_hosts()
    await _check_books()


async def _check_hosts() -> None:
    """C2."""
    await _wait(lambda: len(ma.cluster().hosts.hosts) == 3, 20, lambda: f"C2: hosts {ma.cluster().hosts}")
    async with asyncio.timeout(20):
        procs = await ma.cluster().hosts.spawn_procs(name="after")
        clerks = await procs.spawn("after", Clerk)
        assert list(await clerks.add.call(7)) == [7, 7, 7]
        assert await clerks.at(0).ask.call_one(clerks.at(1), 1, 1000) == await clerks.at(2).ask.call_one(
            clerks.at(0), 1, 1000
        )
        assert await ma.submit(len, "task") == 4
        await procs.stop()


async def _check_books() -> None:
    """C3."""

    async def held() -> list[object]:
        holdings = await ma.cluster().holdings()
        locks = await ma.cluster().locks()
        held = [(host.name, host.holdings, host.elsewhere) for host in holdings.hosts if host.holdings]
        gc.collect()  # references that somebody's traceback has kept
        agents = [left for host in ma.cluster().hosts.hosts for left in await _left_on(host)]
        return [*held, *holdings.waiting, *locks.rows, *pending(active_router()), *agents]

    until = time.monotonic() + 20
    while left := await held():
        assert time.monotonic() < until, f"C3: {left}"
        await asyncio.sleep(0.1)


async def _left_on(host: ma.Host) -> list[str]:
    """What its agent still has."""
    status = await active_domain().requests.ask(address(host.id, AGENT), "status")
    store = status["store"]
    left = [f"{what} {store[what]}" for what in ("objects", "waiting_puts", "waiting_reads") if store[what]]
    left += [f"held by {holder}" for holder in status["holders"]]
    left += [f"proc {proc['mesh']}[{proc['rank']}] {proc['state']}" for proc in status["procs"]]
    left += [f"reservation {row}" for row in status["reservations"]]
    if (count := len(os.listdir(f"/proc/{status['pid']}/fd"))) > MOST_DESCRIPTORS:
        left.append(f"{count} descriptors")
    return [f"{host.name}: {what}" for what in left]


def pending(router: Router) -> list[str]:
    """What the client waits for, or keeps for others."""
    left = [f"waits for {call}" for call in router.pending.values()]
    left += [f"holds what {source} has sent" for source in router.delivery.held]
    left += [f"sends {transfer}" for transfer in router.outgoing._sending]
    left += [f"offers {offer}" for offer in router.outgoing._offered]
    left += [f"{path.inflight} calls in flight" for path in router._paths.values() if path.inflight or path.queue]
    return left


async def _wait(is_so: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, why()
        await asyncio.sleep(0.05)
