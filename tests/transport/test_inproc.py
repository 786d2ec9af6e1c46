"""The stand-in for a socket keeps asyncio's rules: the same probes over it and over real sockets."""

import asyncio
import contextvars
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from monarch_async.testing import SimLoop, simloop
from monarch_async.transport import inproc


class Probe(asyncio.Protocol):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.data = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.said.append("made")

    def data_received(self, data: bytes) -> None:
        if self.said[-1] != "data":
            self.said.append("data")
        self.data += data

    def eof_received(self) -> None:
        self.said.append("eof")

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")
        self.lost.set_result(exc)


Ends = tuple[asyncio.Transport, Probe, asyncio.Transport, Probe]


async def in_process() -> Ends:
    one, other = Probe(), Probe()
    a, b = inproc.connect(one, other, extra={"peername": "b"})
    return a, one, b, other


async def over_unix() -> Ends:
    loop = asyncio.get_running_loop()
    socks = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    (a, one), (b, other) = [await loop.create_unix_connection(Probe, sock=sock) for sock in socks]
    return a, one, b, other


@pytest.fixture(params=["inproc", "unix on uvloop", "unix on asyncio"])
def carried(request: pytest.FixtureRequest) -> Callable[[Callable[[Ends], Awaitable[None]]], None]:
    join, make_loop = {
        "inproc": (in_process, SimLoop),
        "unix on uvloop": (over_unix, uvloop.new_event_loop),
        "unix on asyncio": (over_unix, asyncio.SelectorEventLoop),
    }[request.param]

    def carry(scenario: Callable[[Ends], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(10):
                await scenario(await join())

        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(main())

    return carry


Carried = Callable[[Callable[[Ends], Awaitable[None]]], None]


def test_close_sends_what_is_left_and_ends_both(carried: Carried) -> None:
    async def scenario(ends: Ends) -> None:
        a, one, b, other = ends
        a.write(b"x" * 1_000_000)
        a.close()
        assert a.is_closing() and not a.is_reading()
        assert await other.lost is None
        assert other.data == b"x" * 1_000_000
        await one.lost
        assert not one.data
        assert other.said == ["made", "data", "eof", "lost"]
        assert [said for said in one.said if said not in ("pause", "resume")] == ["made", "lost"]
        assert b.is_closing()

    carried(scenario)


def test_abort_ends_both(carried: Carried) -> None:
    async def scenario(ends: Ends) -> None:
        a, one, _, other = ends
        a.abort()
        a.abort()
        a.close()
        assert await one.lost is None and not one.data
        await other.lost

    carried(scenario)


def test_a_reader_that_pauses_makes_the_writer_pause(carried: Carried) -> None:
    async def scenario(ends: Ends) -> None:
        a, one, b, other = ends
        b.pause_reading()
        assert not b.is_reading()
        a.set_write_buffer_limits(100_000)
        written = 0
        while "pause" not in one.said:
            a.write(b"y" * 50_000)
            written += 50_000
            await asyncio.sleep(0)
            assert written < 4_000_000
        assert a.get_write_buffer_size() > 100_000 and not other.data
        b.resume_reading()
        while len(other.data) < written:
            await asyncio.sleep(0)
        assert one.said == ["made", "pause", "resume"]
        assert a.get_write_buffer_size() == 0
        a.close()
        await other.lost

    carried(scenario)


def test_the_protocol_can_be_replaced(carried: Carried) -> None:
    async def scenario(ends: Ends) -> None:
        a, one, b, _ = ends
        successor = Probe()
        successor.said = ["made"]
        b.set_protocol(successor)
        assert b.get_protocol() is successor
        a.write(b"for the successor")
        a.close()
        await successor.lost
        assert successor.data == b"for the successor"
        await one.lost

    carried(scenario)


def test_bytes_arrive_in_order_after_the_latency_and_together() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = Probe(), Probe()
        a, b = inproc.connect(one, other, latency=0.25, extra={"peername": "somebody"})
        assert b.get_extra_info("peername") == "somebody" and b.get_extra_info("socket") is None
        a.write(b"1")
        a.write(b"2")
        await asyncio.sleep(0.1)
        a.write(b"3")
        await asyncio.sleep(0.149)
        assert other.data == b""
        await asyncio.sleep(0.001)
        assert other.data == b"12"
        await asyncio.sleep(0.1)
        assert other.data == b"123"
        a.close()
        await other.lost
        assert loop.time() == pytest.approx(0.6)

    simloop.run(main())


@pytest.mark.parametrize("at", [1, 5, 6, 7, 10])
def test_a_cut_is_at_an_exact_byte_of_all_that_was_written(at: int) -> None:
    async def main() -> None:
        one, other = Probe(), Probe()
        a, b = inproc.connect(one, other, split=lambda data: [data[:3], data[3:]])
        a.write(b"01")
        await asyncio.sleep(0.001)
        a.cut(at)
        a.write(b"23456789")
        a.write(b"abc")
        b.write(b"z")
        for probe in (one, other):
            assert isinstance(await probe.lost, ConnectionResetError)
        assert other.data == b"0123456789"[: max(at, 2)] and a.arrived == max(at, 2)

    simloop.run(main())


def test_a_protocol_that_raises_loses_its_connection() -> None:
    class Raising(Probe):
        def data_received(self, data: bytes) -> None:
            raise ValueError("what is this")

    async def main() -> None:
        said: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
        one, other = Probe(), Raising()
        a, _ = inproc.connect(one, other)
        a.write(b"?")
        await one.lost
        await other.lost
        assert [type(error) for error in said] == [ValueError]

    simloop.run(main())


def test_a_stalled_way_keeps_what_is_written_and_the_other_goes_on() -> None:
    async def main() -> None:
        one, other = Probe(), Probe()
        a, b = inproc.connect(one, other, latency=0.25)
        a.write(b"1")
        await asyncio.sleep(0.1)
        a.stall()
        a.write(b"2")
        b.write(b"z")
        await asyncio.sleep(1.0)
        assert (one.data, other.data) == (b"z", b"")
        a.close()
        await asyncio.sleep(1.0)
        assert other.said == ["made"]
        a.go_on()
        await other.lost
        assert other.data == b"12"

    simloop.run(main())


def test_a_rate_says_when_the_last_byte_is_there() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = Probe(), Probe()
        a, b = inproc.connect(one, other)
        a.rate = 1000.0
        a.write(b"x" * 500)
        a.write(b"y" * 250)
        await asyncio.sleep(0.49)
        assert not other.data
        await asyncio.sleep(0.02)
        assert other.data == b"x" * 500
        a.rate = None
        a.write(b"z")
        a.close()
        await other.lost
        assert other.data.endswith(b"yz") and loop.time() == pytest.approx(0.75)
        b.close()

    simloop.run(main())


def test_protocols_are_called_in_contexts_of_their_own() -> None:
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="")
    heard: list[str] = []

    class Listener(Probe):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            heard.append(whose.get())

        def data_received(self, data: bytes) -> None:
            heard.append(whose.get())

    async def main() -> None:
        context = contextvars.copy_context()
        context.run(whose.set, "the other")
        a, _ = inproc.connect(Listener(), other := Listener(), contexts=(None, context))
        a.write(b"1")
        a.close()
        await other.lost
        assert heard == ["", "the other", "the other"]

    simloop.run(main())
