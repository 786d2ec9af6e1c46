"""What runs in every process: calls out, calls in, and the actors that answer them.

A client and a worker differ little here. Both have one `Router`, which sends calls and takes replies; a worker also
has a `Proc` with actors in it. Nothing on this floor knows how processes come about or who shall hear of a failure.

Ideas
- One *path* per sender and member. All calls to a member go through it in order, whatever the adverb, and it has a
  window: past so many unanswered calls the next ones wait at the sender. Order and bounded queues come from this one
  place, and neither the agent nor the receiver has to hold what the receiver does not keep up with.
- A call is sent when it is made and is a future from then on. What becomes of it is its one reply: a value, a report
  of what was raised, or the acknowledgement that it was cancelled. An error at which nobody looks is not logged and
  forgotten: it goes to supervision.
- The loop of a proc belongs to ``async`` endpoints and to the runtime. A plain ``def`` endpoint runs on its actor's
  own thread, so that a training step stops neither status, nor cancel, nor the other actors of the proc.
- The hot path (`Incoming.feed`, `Router.post`, `Instance.accept`) makes no task, closure or log record per message; an
  endpoint that never awaits is run to its end where it arrives.

What it refuses
- Timeouts as arguments: ``asyncio.timeout`` around the await does it, and cancels remotely.
- Retries: only the caller knows whether a call may run twice.
- Killing a thread: a cancelled ``def`` endpoint runs on, and says so.

Reading order
- ``actor.py``  what a user writes, and the interface it becomes
- ``router.py``, ``uplinks.py``, ``path.py``, ``members.py``, ``call.py``, ``waiters.py``  calls out: order, windows,
  futures, who waits for whom
- ``incoming.py``, ``delivery.py``  what arrives, in order
- ``direct.py``  connections between procs of one host, beside the agent
- ``birth.py``, ``instance.py``, ``answers.py``, ``actor_thread.py``, ``producer.py``, ``ending.py``  one actor: how it
  comes to be, its mailbox, calls, thread, streams, how it ends
- ``proc.py``, ``context.py``  a worker from the inside, and ``context()``
- ``report.py``, ``failures.py``  exceptions as bytes; those at which nobody has looked
- ``outgoing.py``, ``taker.py``, ``receipts.py``  large payloads, over the data plane; ``transfer.py``  or in chunks
- ``watchdog.py``  who blocks the loop
"""
