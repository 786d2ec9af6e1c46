"""What a program holds: meshes of hosts, procs, actors and values, and their adverbs.

This floor turns ``await trainers.step.call(batch)`` into calls of the floors below and their replies into values. It
has no state of its own beyond what a program has spawned.

Ideas
- A mesh is addresses and a region, nothing more. So it pickles, works from any proc, is sliced for nothing, and keeps
  nothing alive: a lifetime is an ``async with`` block, never garbage collection.
- Every kind of mesh is sliced by the same code and the same words, values included: a slice of the results means the
  members that a slice of the callees means.
- Arguments are checked against the endpoint's signature and pickled before anything is sent. What is wrong with a call
  is said at the call, and nothing is half done.
- Failures follow the tree of who spawned whom: here, a block (`scope`) in the client, an actor's ``__supervise__`` in
  a worker. Unhandled, they cancel the body of the block and are raised by it, as in a TaskGroup.

What it refuses
- A second, blocking copy of the API: it would be the same text twice and would freeze loops.
- Calling a mesh without an adverb: whether one or all members are meant must be read in the line.
- Endpoints named like a mesh's own methods: they could not be reached.

Reading order
- ``attachment.py``, ``cluster.py``, ``host_mesh.py``, ``proc_recipe.py``, ``proc_mesh.py``, ``actor_mesh.py``  how a
  program gets from nothing to actors; ``termination.py``  SIGTERM
- ``roster.py``, ``remote_roster.py``, ``host_source.py``, ``local_source.py``  hosts that join and leave meanwhile
- ``placement.py``, ``placement_request.py``, ``placed_env.py``  what a demand was granted, and procs on it
- ``detachment.py``, ``leases.py``  procs that outlive their program, and the next one that takes them over
- ``endpoint.py``, ``stream.py``, ``value_mesh.py``, ``port.py``  calls, and what comes back
- ``buffer.py``, ``registration.py``, ``deathwatch.py``, ``transfers.py``, ``transports.py``, ``progress.py``  memory
  that others read and write
- ``ref.py``, ``holding.py``, ``holdings.py``, ``ref_tickets.py``  shared objects: references, what is held here, what
  is on its way; ``room_report.py``: who has what a put waits for; ``broadcast.py``: copies of one on many hosts
- ``sliced.py``  what the meshes have in common
- ``domain.py``, ``guardian.py``; ``program.py``, ``scope.py``, ``console.py`` in the client; ``worker.py`` in workers:
  who spawned what, and who is told of its failures
- ``status.py``, ``resource_status.py``, ``detached_status.py``, ``lock_table.py``, ``duration.py``  what hosts are
  doing right now, who holds and waits for what
"""
