"""Work on an actor's thread that is taken back, at every moment it can be."""

import asyncio
import threading

from monarch_async.runtime.actor_thread import ActorThread


class Request:
    pass


async def test_work_that_has_run_cannot_be_taken_back_and_hurts_nobody_after_it() -> None:
    thread = ActorThread("a", asyncio.get_running_loop())
    answers: list[int] = []
    done = threading.Event()

    def work(request: object, number: int):
        done.set()
        return lambda: answers.append(number)

    try:
        for number in range(200):
            request = Request()
            done.clear()
            thread.submit(work, request, number)
            done.wait()  # it has run; its answer waits for this loop
            assert not thread.withdraw(request)
            del request  # the next one may get its address
            await asyncio.sleep(0)
        while len(answers) < 200:
            await asyncio.sleep(0.001)
        assert answers == list(range(200))
    finally:
        thread.close()


async def test_work_that_waits_is_taken_back_once() -> None:
    thread = ActorThread("a", asyncio.get_running_loop())
    answers: list[str] = []
    go = threading.Event()

    def work(request: object, name: str):
        go.wait()
        return lambda: answers.append(name)

    try:
        first, second, third = Request(), Request(), Request()
        for request, name in ((first, "first"), (second, "second"), (third, "third")):
            thread.submit(work, request, name)
        assert thread.withdraw(second)
        assert not thread.withdraw(second)
        go.set()
        while len(answers) < 2:
            await asyncio.sleep(0.001)
        assert answers == ["first", "third"]
    finally:
        thread.close()


async def test_an_answer_that_cannot_be_sent_does_not_hold_up_the_others() -> None:
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    thread = ActorThread("a", loop)
    answers: list[int] = []

    def fail() -> None:
        raise OSError("no way")

    try:
        thread.submit(lambda request, method: fail, Request(), None)
        thread.submit(lambda request, method: lambda: answers.append(1), Request(), None)
        while not answers:
            await asyncio.sleep(0.001)
        assert [str(complaint["exception"]) for complaint in complaints] == ["no way"]
    finally:
        thread.close()
        loop.set_exception_handler(None)
