"""Locks, semaphores, events, barriers and queues between processes.

Ideas
- Their home is a host agent, which runs no user code: taking and giving back never wait behind anybody's calls.
- Who holds something is a process, known to the agents: when it dies, what it holds is released.
- Each holder has a fencing token, larger than all before it: what a paused holder still
  writes can be told from the new.

What it refuses
- Locks that are held by nobody in particular, or for ever.

Reading order:
"""
