"""How many threads libraries compute with: as under Ray, as many as a task or an actor has CPUs, and at least one.

Else each of them would start as many as its host has cores, and there may be one for each core. Whoever sets
``OMP_NUM_THREADS`` himself, in the environment of the driver or by ``env_vars``, has what he says.
"""

import os
import sys
from collections.abc import Mapping

VARIABLE = "OMP_NUM_THREADS"

_asked = ""  # by the last task that ran here
_set = ""  # by us


def threads_for(cpus: float | None) -> str:
    """Return the variable's value for so many CPUs; None: nobody said how many."""
    return str(max(1, int(cpus or 0)))


def limit_of_process(cpus: float | None) -> dict[str, str]:
    """Return what the environment of a process gets that is made for so many CPUs."""
    return {} if VARIABLE in os.environ else {VARIABLE: threads_for(cpus)}


def limit_here(resources: Mapping[str, float]) -> None:
    """Have the libraries of this process use as many threads as the task has CPUs that is about to run."""
    global _asked, _set
    threads = threads_for(resources.get("CPU"))
    if threads == _asked:
        return
    _asked = threads
    if os.environ.get(VARIABLE, "") != _set:  # not ours
        return
    os.environ[VARIABLE] = _set = threads
    if (torch := sys.modules.get("torch")) is not None:  # read it when it was imported
        torch.set_num_threads(int(threads))
