"""The data plane: bytes beside the messages.

A process registers memory; others read and write it without its doing anything. What travels with the messages is a
description of a few hundred bytes (`endpoint.Endpoint`, `region.RemoteRegion`); the bytes take the best way there is
between the two processes. It is a floor of its own because arguments (``runtime``), the hosts' stores of shared objects
(``control``) and handles (``mesh``) all stand on it, and it needs nothing but sockets.

Ideas
- One plane per process, with a thread and an event loop of its own: a peer reads while the owner computes. It starts
  with the first use: who moves no tensors has no such thread.
- A region is a space of bytes, its spans of memory end to end. Everything is said in offsets into it, so that a tensor,
  a slice of one and a state dict of hundreds are read alike.
- Whether memory may still be read is a word in the owner's memory (`region.Beacon`), so that one-sided readers check it
  with the same system call that reads the bytes: before and after them. A writer asks the owner first, and the owner
  lets go of memory only when its writers have left.
- Transports have one interface and one conformance suite. Which one is taken is found out by trying, and can be asked.

What it refuses
- Unpickling: it moves bytes, and is used by agents, which run no user code.
- Ordering between transfers: who needs one after the other awaits the first.

Reading order
- ``endpoint``  how a process is reached, as its handles say it
- ``region``  memory that others may read or write, and how they know that they still may
- ``transport``  the interface of all transports; runs of bytes
- ``memory``, ``copying``, ``blocks``  addresses, copies; private memory kept warm
- ``local``  within one process
- ``cma``, ``grant``; ``mapping``, ``arena``, ``stage``, ``staged``  between processes of one machine; ``errands``
- over sockets: ``arrivals``, ``receiving``, ``sending``, ``turns``, ``redial`` decide; ``pieces``, ``request``,
  ``intake``, ``bulk_connection`` move; ``stream_transfer``, ``stream`` dial; ``served``, ``bulk_server`` serve
- ``ucx_library``, ``ucx_worker``, ``ucx_endpoint``, ``ucx_flight``, ``ucx_grants``, ``ucx``  one-sided over UCX
- ``device``, ``pinned``  the memory of devices, by way of pinned memory
- ``plane``, ``plane_thread``, ``routes``, ``ways``  one process's data plane, and which way it goes to whom
"""
