"""Functions run wherever there is room: tasks, on warm workers.

Ideas
- A task is a call of a function in a worker that has its resources. Workers are kept warm by those who submit.
- Who submits, owns: it keeps what is needed to try again elsewhere, and gives up on what ends every worker it meets.

What it refuses
- To retry what may have had an effect, unless it is said that it may: only a worker's death, and what
  ``retry_on`` names.

Reading order:
- ``shape.py``, ``events.py``, ``line.py``, ``queue.py``  which task runs on which worker; pure
"""
