"""What loops of reinforcement learning need beside calls: libraries on the public API.

Learners and generators run at speeds of their own. What goes between them here has one owner, is bounded, and is never
seen half done; nobody waits for whoever is slow, and everybody is told of whoever is gone.

Ideas
- Weights are versions. A version is a shared object, which cannot change: so there is no torn one, no lock, and no
  moment at which learner and generators have to meet. A generator moves on between two steps of its own.
- Latest only. A version that nobody has taken is not worth keeping; so nothing queues, however slow a subscriber is.
- Subscribers ask, the publisher never pushes. What it knows of them is one unanswered question at most: one that dies
  leaves nothing to clean up, and one that comes late gets the newest version as any other.

What it refuses
- A rendezvous of all ranks for every version: whoever does not arrive stops the others.
- Writing into generators' memory from outside: only they know when nothing is reading it.

Reading order
- ``weights.py``  `WeightPublisher` and `WeightSubscriber`
- ``publication.py``  what a publisher's process keeps: versions, and who waits for the next
"""
