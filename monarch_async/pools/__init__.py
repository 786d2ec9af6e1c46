"""Elastic pools of actors: as many replicas as there is work for.

Ideas
- A replica is a placement, a proc and an actor. The pool routes to the least loaded, and stays with it where asked to.
- What a caller has is a lease, which ends with the caller.

What it refuses
- To guess what a replica costs: it scales on how many wait, within bounds.

Reading order:
"""
