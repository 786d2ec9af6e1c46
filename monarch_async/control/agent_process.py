"""The process around a host agent: its listener, signals, and the client it may hang on.

An agent that a client starts for itself has a *lifeline*, one end of a socket pair: it writes its address there when it
is ready, and ends, with all its procs, when the other end closes, for whatever reason. One that is started by hand
ends on SIGTERM or SIGINT.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence

from monarch_async.config import Config
from monarch_async.control.declared import Declared
from monarch_async.control.host_agent import HostAgent
from monarch_async.control.inventory import find_resources
from monarch_async.control.kernel import raise_open_files
from monarch_async.transport.dial import listening
from monarch_async.transport.tls import warning_of_end
from monarch_async.transport.url import Url


async def serve_agent(
    url: str,
    token: bytes,
    name: str,
    preload: Sequence[str] = (),
    lifeline: socket.socket | None = None,
    config: Config | None = None,
    declared: Declared = Declared(),  # noqa: B008
    share: tuple[int, int] = (0, 1),
) -> None:
    """Run an agent until its lifeline closes or a signal asks it to end. ``config``: by default from the environment.

    ``declared`` and ``share`` are as of `inventory.find_resources`.

    Raises ValueError for a bad address, for resources that make no sense, or where TLS cannot be set up, OSError where
    it cannot listen, SpawnFailed where a preload fails.
    """
    config = config or Config.from_env()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    signals = (signal.SIGTERM,) if lifeline is not None else (signal.SIGTERM, signal.SIGINT)
    for signo in signals:
        loop.add_signal_handler(signo, ended.set)
    open_files = raise_open_files()  # three per worker are ours, and one per shared object
    resources = await find_resources(declared, share)
    agent = HostAgent(name, token, config, is_lifelined=lifeline is not None, resources=resources)
    agent.workers.open_files = open_files  # workers get the limit that was
    guests = agent.guests
    try:
        listen = Url.parse(url)
        agent.tls.check(listen)
        async with (
            listening(listen, token, guests.admit, guests.agreed, guests.refused, agent.tls) as real,
            warning_of_end(agent.tls),
        ):
            agent.url = real.text
            await agent.workers.nursery.start_zygote(tuple(preload))
            ready = {"url": real.text, "host": agent.host, "name": name, "pid": os.getpid()}
            if lifeline is None:
                print(f"agent {name} listens on {real.text}", flush=True)
            else:
                lifeline.setblocking(False)
                await loop.sock_sendall(lifeline, json.dumps(ready).encode() + b"\n")
                loop.add_reader(lifeline.fileno(), _watch, lifeline, ended)
            await ended.wait()
    finally:
        if lifeline is not None:
            loop.remove_reader(lifeline.fileno())
        await agent.aclose()


def _watch(lifeline: socket.socket, ended: asyncio.Event) -> None:
    try:
        if lifeline.recv(64):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    asyncio.get_running_loop().remove_reader(lifeline.fileno())
    ended.set()
