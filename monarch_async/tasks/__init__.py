"""Functions run wherever there is room: tasks, on warm workers.

Ideas
- A task is a call of a function in a worker that has its resources. Workers are kept warm by those who submit.
- Who submits, owns: it keeps what is needed to try again elsewhere, and gives up on what ends every worker it meets.
- Workers are spares to the scheduler: whoever else needs what they hold gets it as soon as they are free.
- What a task submits, spawns, places or locks ends with it.
- A task that waits for tasks lends its cpus to them, and deeper ones go first: nesting needs no more than one cpu.

What it refuses
- To retry what may have had an effect, unless it is said that it may: only a worker's death, and what
  ``retry_on`` names.
- To interrupt a plain function: the worker that runs it is ended, and another is started in its place in milliseconds.
- A pool for the whole cluster in one process: every process that submits leases workers of its own, and talks to them
  directly. So the client is not in the way of tasks that others submit.
- Results that outlive whoever submitted the task, unless they are shared objects (``as_ref``).

Reading order:
- ``task.py``, ``options.py``, ``function.py``, ``future.py``, ``mapping.py``  what a program says, and gets
- ``shape.py``, ``events.py``, ``line.py``, ``queue.py``  which task runs on which worker; pure
- ``pool.py``, ``warm_worker.py``, ``sent_task.py``, ``flight.py``, ``items.py``  the shell around that
- ``runner.py``, ``task_scope.py``, ``children.py``  in the worker: running a task, and what ends with it
- ``quarantine.py``, ``table.py``  what was set aside; what everything is doing
"""
