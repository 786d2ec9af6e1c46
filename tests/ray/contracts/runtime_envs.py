"""runtime_env: variables of the environment."""

import os
from pathlib import Path

import ray
from contract import answer, error_of
from ray.runtime_env import RuntimeEnv


@ray.remote
def variables(*names):
    return [os.environ.get(name) for name in names]


@ray.remote
class Holder:
    def variables(self, *names):
        return [os.environ.get(name) for name in names]

    def ask(self, *names):
        return ray.get(variables.remote(*names))


class Unpickled:
    """Becomes, where it is unpickled, what a variable of the environment is there."""

    def __reduce__(self):
        return os.getenv, ("CONTRACT_X", "not set")


def contract_variables_of_a_task() -> object:
    task = variables.options(runtime_env={"env_vars": {"CONTRACT_X": "1"}})
    return [ray.get(task.remote("CONTRACT_X", "JOB_X")), ray.get(variables.remote("CONTRACT_X", "JOB_X"))]


def contract_variables_of_an_actor() -> object:
    holder = Holder.options(runtime_env={"env_vars": {"CONTRACT_X": "2", "JOB_X": "over"}}).remote()
    return ray.get(holder.variables.remote("CONTRACT_X", "JOB_X", "JOB_Y"))


def contract_variables_are_there_before_anything_is_unpickled() -> object:
    probe = Unpickled()

    @ray.remote(runtime_env={"env_vars": {"CONTRACT_X": "early"}})
    class Probed:
        found = probe

        def read(self):
            return self.found

    return ray.get(Probed.remote().read.remote())


def contract_variables_in_the_decorator() -> object:
    @ray.remote(runtime_env={"env_vars": {"CONTRACT_X": "decorated"}})
    def read():
        return os.environ["CONTRACT_X"]

    return ray.get(read.remote())


def contract_runtime_env_is_a_class_too() -> object:
    env = RuntimeEnv(env_vars={"CONTRACT_X": "object"})
    return [ray.get(variables.options(runtime_env=env).remote("CONTRACT_X")), env["env_vars"], isinstance(env, dict)]


def contract_children_have_what_their_parent_has() -> object:
    holder = Holder.options(runtime_env={"env_vars": {"CONTRACT_X": "parent"}}).remote()
    return ray.get(holder.ask.remote("CONTRACT_X", "JOB_X"))


def contract_variables_do_not_stay_with_workers() -> object:
    task = variables.options(runtime_env={"env_vars": {"CONTRACT_Z": "1"}})
    ray.get([task.remote("CONTRACT_Z") for _ in range(4)])
    return ray.get([variables.remote("CONTRACT_Z") for _ in range(4)])


def contract_wrong_environments() -> object:
    wrong = [{"env_vars": {"A": 1}}, {"env_vars": ["A"]}, {"working_dir": 5}, {"working_dir": "/no/such/folder"}, 5]
    return [
        [
            str(given),
            error_of(lambda given=given: ray.get(variables.options(runtime_env=given).remote("A"), timeout=20)),
        ]
        for given in wrong
    ]


def contract_modules_beside_the_script_are_found() -> object:
    @ray.remote
    def where():
        import contract

        return Path(contract.__file__).name

    return ray.get(where.remote())


def contract_the_variables_of_the_driver_are_there() -> object:
    return [os.environ.get("JOB_X"), ray.get(variables.remote("HOME")) == [os.environ.get("HOME")]]


if __name__ == "__main__":
    answer(globals(), num_cpus=4, runtime_env={"env_vars": {"JOB_X": "job", "JOB_Y": "of the job"}})
