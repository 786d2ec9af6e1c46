"""Processes: how they are started, watched and ended, and how messages find them.

Three programs meet here. The client's *controller* asks. The *host agent*, one per machine, acts: it routes, and it
has a *zygote*, which forks the workers.

Ideas
- The agent never unpickles and runs no user code. It reads 16 bytes of a frame's header and forwards the rest as it
  is, so it is quick, and nothing a user does can break it. Requests to it are small msgpack arrays.
- Workers are forked from a process that has imported everything and done nothing else: one thread, no event loop, no
  CUDA. That takes milliseconds, and the imported pages are shared. What must be true of a worker from its first line
  on (its group, environment, pipes) is set between the fork and the user's first import.
- Ending is exact, and does not depend on anybody's good will: parent-death signals, process groups, and a sub-reaper
  that finds what a proc started and left. A worker whose agent is silent for too long ends itself.
- What can be decided without acting is pure (supervision policies, log lines, the zygote's messages); what acts is
  thin around it.

What it refuses
- To be on the path of messages between procs: the controller only hears of starts, ends and failures.
- To start a process by ``fork`` from one that has threads: it may hold any lock, for ever.
- To listen without a token, anywhere.
- Heartbeats of workers: the agent watches the process, which the kernel knows about exactly; a busy loop is not dead.

Reading order
- ``host_agent.py``  the agent, and its parts: ``relay.py`` (routes), ``guests.py`` (who dialled in), ``peers.py``
  (other agents), ``workers.py`` and ``worker.py``, ``output.py`` and ``log_lines.py`` (what they print)
- ``nursery.py``, ``zygote.py``, ``bootstrap.py``  from the request for a worker to its first line; beside them
  ``zygote_process.py``, ``zygote_messages.py``, ``preload.py``, ``kernel.py``
- ``store.py``, ``store_stock.py``, ``store_room.py``, ``shared_object.py``  a host's store of shared objects, decided;
  ``host_store.py``, ``store_memory.py``, ``store_pull.py``  and done
- ``coordination.py``, ``coordination_asks.py``, ``permits.py``, ``flag.py``, ``barrier.py``, ``item_queue.py``  locks,
  queues and the like, decided; ``host_coordination.py``  and done
- ``inventory.py``, ``declared.py``, ``resource_options.py``  what a host has to place on; ``ledger.py``,
  ``reservations.py``  who holds what; ``placer.py``, ``booking.py``, ``holder.py``, ``remote_placer.py``,
  ``placement_messages.py``  the client's scheduler; ``detached.py``, ``host_leases.py``  procs that outlive a client
- ``uploads.py``  arguments that several procs were sent; ``inquiries.py``, ``refusal.py``  what agents ask, and refuse
- ``controller.py``  the client's side: ``host_links.py`` (sessions), ``membership.py``, ``host.py`` (what hosts there
  are), ``host_watch.py`` (who follows that), ``directory.py`` and ``host_news.py`` (what agents hear of it)
- ``supervision.py``  failures and policies
- ``agent_process.py``, ``local_agent.py``, ``cluster_token.py``  the process around an agent
"""
