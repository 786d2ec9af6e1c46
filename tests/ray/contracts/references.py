"""ObjectRefs as things: compared, awaited, pickled, kept, freed."""

import asyncio
import concurrent.futures
import copy
import pickle
import threading

import ray
from contract import Gate, answer, error_of


@ray.remote
def add(a, b=1):
    return a + b


@ray.remote
def fail():
    raise ValueError("boom")


def contract_refs_are_hashable_and_equal_to_themselves() -> object:
    one, two = ray.put(1), ray.put(1)
    return [one == one, one == two, len({one, two, one}), {one: "x"}[one], hash(one) == hash(one)]


def contract_refs_have_ids() -> object:
    ref = ray.put(1)
    return [len(ref.hex()), ref.hex() in repr(ref), type(ref).__name__, len(ref.binary())]


def contract_ref_is_generic() -> object:
    return str(ray.ObjectRef[int]).endswith("ObjectRef[int]")


def contract_put_copies() -> object:
    mine = {"a": [1]}
    ref = ray.put(mine)
    mine["a"].append(2)
    got = ray.get(ref)
    got["a"].append(3)
    return ray.get(ref)


def contract_put_of_a_ref_is_refused() -> object:
    return [error_of(lambda: ray.put(ray.put(1))), ray.get(ray.get(ray.put([ray.put(1)]))[0])]


def contract_put_of_what_does_not_pickle() -> object:
    return error_of(lambda: ray.put(threading.Lock()), "pickle")


def contract_a_ref_pickles() -> object:
    ref = ray.put(5)
    again = ray.cloudpickle.loads(ray.cloudpickle.dumps(ref))
    third = pickle.loads(pickle.dumps(ref))
    return [again == ref, third == ref, hash(again) == hash(ref), ray.get([again, third])]


def contract_a_ref_copies() -> object:
    ref = ray.put(5)
    return [copy.copy(ref) == ref, ray.get(copy.deepcopy([ref])[0])]


def contract_a_future_of_a_ref() -> object:
    future = add.remote(1).future()
    failed = fail.remote().future()
    return [
        isinstance(future, concurrent.futures.Future),
        future.result(timeout=10),
        error_of(lambda: failed.result(timeout=10), "boom"),
    ]


def contract_a_callback_of_a_future() -> object:
    seen, gate = [], Gate()
    add.remote(1).future().add_done_callback(lambda future: (seen.append(future.result()), gate.open()))
    return [gate.wait(), seen]


def contract_refs_are_awaited_in_the_driver() -> object:
    async def run():
        return [await add.remote(1), await ray.put("x"), await asyncio.gather(add.remote(2), add.remote(3))]

    return asyncio.run(run())


def contract_awaited_twice() -> object:
    async def run():
        ref = add.remote(1)
        return [await ref, await ref]

    return asyncio.run(run())


def contract_an_awaited_error() -> object:
    async def run():
        await fail.remote()

    return error_of(lambda: asyncio.run(run()), "boom")


def contract_wait_for_and_as_completed() -> object:
    gate = Gate()

    @ray.remote
    def held():
        gate.wait()
        return "held"

    async def run():
        ref = held.remote()
        try:
            await asyncio.wait_for(asyncio.wrap_future(ref.future()), 0.1)
            late = False
        except TimeoutError:
            late = True
        gate.open()
        done = [await next_one for next_one in asyncio.as_completed([add.remote(1), add.remote(1)])]
        return [late, done]

    return asyncio.run(run())


def contract_wrap_future() -> object:
    async def run():
        return await asyncio.wrap_future(add.remote(4).future())

    return asyncio.run(run())


def contract_a_borrowed_ref_keeps_its_value() -> object:
    """A ref that an actor holds is good after everybody else has dropped it."""

    @ray.remote
    class Keeper:
        def keep(self, refs):
            self.refs = refs

        def value(self):
            return ray.get(self.refs[0])

    keeper, ref = Keeper.remote(), ray.put("kept")
    ray.get(keeper.keep.remote([ref]))
    del ref
    return [ray.get(keeper.value.remote()), ray.get(keeper.value.remote())]


def contract_a_ref_in_a_value_keeps_its_value() -> object:
    outer = ray.put({"inner": ray.put("kept")})

    @ray.remote
    def look(named):
        return ray.get(named["inner"])

    return [ray.get(look.remote(outer)), ray.get(ray.get(outer)["inner"])]


def contract_refs_of_tasks_that_actors_made() -> object:
    @ray.remote
    class Maker:
        def make(self):
            return [add.remote(1), ray.put(2)]

    maker = Maker.remote()
    refs = ray.get(maker.make.remote())
    return ray.get(refs)


def contract_a_ref_passes_through_several() -> object:
    @ray.remote
    def through(refs, n):
        return refs if n == 0 else ray.get(through.remote(refs, n - 1))

    return ray.get(ray.get(through.remote([ray.put("deep")], 3))[0])


def contract_the_result_outlives_its_actor() -> object:
    @ray.remote
    class Brief:
        def give(self):
            return "given"

    brief = Brief.remote()
    ref = brief.give.remote()
    ray.wait([ref])
    ray.kill(brief)
    return ray.get(ref)


def contract_a_ref_of_a_dropped_actor_is_good() -> object:
    @ray.remote
    class Brief:
        def give(self):
            return b"x" * 300_000

    return len(ray.get(Brief.remote().give.remote()))


def contract_results_are_separate_objects() -> object:
    ref = ray.put([1])
    one, two = ray.get(ref), ray.get(ref)
    one.append(2)
    return two


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
