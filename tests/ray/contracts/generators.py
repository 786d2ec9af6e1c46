"""Generators that stream: ``num_returns="streaming"``, which generator functions have of themselves."""

import asyncio
import pickle

import ray
from contract import Gate, Tally, answer, error_of, until


@ray.remote
def count(n):
    for i in range(n):  # noqa: UP028 -- Ray does not take `yield from` an iterator
        yield i


@ray.remote
class Source:
    def count(self, n):
        for i in range(n):  # noqa: UP028
            yield i

    def one(self):
        return 1


@ray.remote
class AsyncSource:
    async def count(self, n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i


def contract_a_generator_gives_refs() -> object:
    generator = count.remote(3)
    refs = list(generator)
    return [
        type(generator).__name__,
        isinstance(generator, ray.ObjectRefGenerator),
        [isinstance(ref, ray.ObjectRef) for ref in refs],
        ray.get(refs),
    ]


def contract_streaming_may_be_said() -> object:
    return [ray.get(ref) for ref in count.options(num_returns="streaming").remote(2)]


def contract_after_the_end_it_stops() -> object:
    generator = count.remote(1)
    value = ray.get(next(generator))
    return [value, error_of(lambda: next(generator)), error_of(lambda: next(generator))]


def contract_an_empty_generator() -> object:
    return list(count.remote(0))


def contract_values_arrive_before_the_end() -> object:
    gate = Gate()

    @ray.remote
    def slow():
        yield "early"
        yield gate.wait()

    generator = slow.remote()
    early = ray.get(next(generator))
    gate.open()
    return [early, ray.get(next(generator))]


def contract_an_error_comes_after_what_was_yielded() -> object:
    @ray.remote
    def broken():
        yield 1
        raise ValueError("boom")

    generator = broken.remote()
    first = ray.get(next(generator))
    second = next(generator)
    return [first, error_of(lambda: ray.get(second), "boom"), error_of(lambda: next(generator))]


def contract_a_method_may_be_a_generator() -> object:
    source = Source.remote()
    streamed = source.count.options(num_returns="streaming").remote(3)
    return [ray.get(list(streamed)), ray.get(list(source.count.remote(2))), ray.get(source.one.remote())]


def contract_an_async_method_may_be_a_generator() -> object:
    source = AsyncSource.remote()
    return [ray.get(ref) for ref in source.count.remote(3)]


def contract_async_for_over_a_generator() -> object:
    async def collect():
        found = []
        async for ref in count.remote(3):
            found.append(await ref)
        return found

    return asyncio.run(collect())


def contract_anext_stops_at_the_end() -> object:
    async def run():
        generator = count.remote(1)
        value = await (await generator.__anext__())
        try:
            await generator.__anext__()
        except StopAsyncIteration:
            return value, "stopped"

    return asyncio.run(run())


def contract_two_generators_interleaved() -> object:
    one, two = count.remote(3), count.remote(3)
    return [ray.get([a, b]) for a, b in zip(one, two, strict=True)]


def contract_wait_takes_generators() -> object:
    gate = Gate()

    @ray.remote
    def held():
        gate.wait()
        yield 1

    slow, quick = held.remote(), count.remote(2)
    ready, rest = ray.wait([slow, quick], timeout=10)
    found = [ready[0] is quick, rest[0] is slow]
    gate.open()
    ready, _ = ray.wait([slow], timeout=10)
    return [*found, ready[0] is slow, ray.get(next(slow))]


def contract_completed_is_a_ref_of_the_end() -> object:
    generator = count.remote(2)
    ended = generator.completed()
    list(generator)
    return [isinstance(ended, ray.ObjectRef), ray.get(ended), generator.is_finished()]


def contract_completed_of_a_generator_that_raises() -> object:
    @ray.remote
    def broken():
        yield 1
        raise ValueError("boom")

    generator = broken.remote()
    return error_of(lambda: ray.get(generator.completed()), "boom")


def contract_a_generator_does_not_pickle() -> object:
    generator = count.remote(1)

    @ray.remote
    def take(given):
        return given

    return [error_of(lambda: pickle.dumps(generator)), error_of(lambda: take.remote(generator))]


def contract_a_number_of_results_and_a_generator() -> object:
    refs = count.options(num_returns=3).remote(3)
    return [type(refs).__name__, ray.get(refs)]


def contract_its_refs_go_on_to_tasks() -> object:
    @ray.remote
    def double(x):
        return x * 2

    return ray.get([double.remote(ref) for ref in count.remote(4)])


def contract_a_generator_in_a_task() -> object:
    @ray.remote
    def total(n):
        return sum(ray.get(ref) for ref in count.remote(n))

    return ray.get(total.remote(5))


def contract_backpressure_holds_the_producer() -> object:
    tally = Tally()

    @ray.remote(_generator_backpressure_num_objects=2)
    def eager():
        for i in range(400):
            tally.add()
            yield i

    generator = eager.remote()
    first = ray.get(next(generator))
    until(lambda: len(tally.lines()) == 400, 0.5)
    held = len(tally.lines()) < 400
    return [first, held, len([ray.get(ref) for ref in generator]), len(tally.lines())]


def contract_a_dropped_generator_hurts_nobody() -> object:
    next(count.remote(50))
    return [ray.get(ref) for ref in count.remote(2)]


def contract_large_values() -> object:
    @ray.remote
    def blocks():
        for i in range(3):
            yield bytes([i]) * 500_000

    return [[value[0], len(value)] for value in map(ray.get, blocks.remote())]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
