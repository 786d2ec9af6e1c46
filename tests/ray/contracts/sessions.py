"""init and shutdown."""

import os
import tempfile
from pathlib import Path

import ray
from contract import answer, differs, error_of


@ray.remote
def pid():
    return os.getpid()


def start(**options):
    return ray.init(include_dashboard=False, log_to_driver=False, **options)


def contract_init_and_shutdown() -> object:
    found = [ray.is_initialized()]
    start(num_cpus=2, resources={"thing": 2}, namespace="mine")
    found += [ray.is_initialized(), ray.cluster_resources()["CPU"], ray.cluster_resources()["thing"]]
    found += [ray.get_runtime_context().namespace, isinstance(ray.get(pid.remote()), int)]
    found += [error_of(lambda: start(num_cpus=1)), start(num_cpus=1, ignore_reinit_error=True) is not None]
    ray.shutdown()
    found += [ray.is_initialized(), ray.shutdown()]
    return found


def contract_a_function_goes_on_after_a_new_init() -> object:
    found = []
    for _ in range(2):
        start(num_cpus=1)
        found.append(isinstance(ray.get(pid.remote()), int))
        ray.shutdown()
    return found


def contract_what_init_gives() -> object:
    with start(num_cpus=1) as context:
        found = [
            "node_id" in context.address_info,
            isinstance(context.python_version, str),
            context.ray_version == ray.__version__,
            ray.is_initialized(),
        ]
    return [*found, ray.is_initialized()]


@differs("a session begins with whatever needs one first", [{"no error": "list"}, {"no error": "dict"}])
def contract_what_is_asked_for_before_init() -> object:
    found = [error_of(lambda: ray.nodes()), error_of(lambda: ray.cluster_resources())]
    ray.shutdown()
    return found


def contract_the_working_directory_of_the_job() -> object:
    folder = Path(tempfile.mkdtemp())
    (folder / "data.txt").write_text("from the folder")
    (folder / "folder_module.py").write_text("WORD = 'imported'\n")

    @ray.remote
    def look():
        import folder_module

        return Path("data.txt").read_text(), folder_module.WORD

    @ray.remote
    class Looking:
        def look(self):
            return sorted(name for name in os.listdir(".") if not name.startswith("_"))

    start(num_cpus=1, runtime_env={"working_dir": str(folder)})
    found = [ray.get(look.remote()), ray.get(Looking.remote().look.remote())]
    ray.shutdown()
    return found


def contract_init_of_its_own_accord() -> object:
    value = ray.get(ray.put(5))
    found = [value, ray.is_initialized()]
    ray.shutdown()
    return found


def contract_actors_end_with_the_session() -> object:
    from contract import is_running, until

    @ray.remote
    class Lasting:
        def pid(self):
            return os.getpid()

    start(num_cpus=1)
    lasting = Lasting.options(name="lasting", lifetime="detached").remote()
    number = ray.get(lasting.pid.remote())
    ray.shutdown()
    return until(lambda: not is_running(number))


def contract_wrong_options_of_init() -> object:
    found = [error_of(lambda: ray.init(num_cpus=-1)), error_of(lambda: ray.init(no_such_option=1))]
    ray.shutdown()
    return found


if __name__ == "__main__":
    answer(globals())
