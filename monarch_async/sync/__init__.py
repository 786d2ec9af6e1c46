"""Locks, semaphores, events, barriers and queues between processes.

    lock = ma.Lock()                        # or ma.Lock("checkpoints"): the same one wherever that is written
    async with lock as token: ...           # in any proc it was passed to
    await queue.put(episode)                # waits while the queue is full
    async for episode in queue: ...         # items, then the end, or the error

Ideas
- Their home is a host agent, which runs no user code: taking and giving back never wait behind anybody's calls.
- Who holds something is a process, known to the agents: when it dies, what it holds is released.
- Each holder has a fencing token, larger than all before it: what a paused holder still
  writes can be told from the new.
- What is taken takes one round trip to the home; giving back is one message that nobody waits for.
- An object of these classes is a reference: small, it pickles, and keeps nothing alive. What it refers to comes into
  being when it is first used, and ends with the programs that use it. While its home is lost, everybody who waits or
  asks gets HostLost: made anew on another host, a lock could be held twice. A host that comes back begins empty.

What it refuses
- Locks that are held by nobody in particular, or for ever.
- Threads: an endpoint that is a plain ``def`` runs on one, and these are used on the event loop. Make it ``async def``,
  or hand a coroutine over by ``asyncio.run_coroutine_threadsafe``.
- Large items in an agent: they are shared objects, which the queue holds until somebody has taken them.

Reading order: ``reference.py`` (what all of them are), ``asked.py`` (one request), ``holds.py`` (what was granted),
``lock.py``, ``semaphore.py``, ``event.py``, ``barrier.py``, ``parcel.py`` (items as bytes), ``queue.py``. What a home
does is in ``monarch_async.control``: `coordination` and what it names.
"""
