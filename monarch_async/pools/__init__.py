"""Elastic pools of actors: as many replicas as there is work for.

Ideas
- A replica is a placement, a proc and an actor. The pool routes to the least loaded, and stays with it where asked to.
- What a caller has is a lease, which ends with the caller: with its block, and with its process.
- A pool lives in the process that has made it. Others ask that one, and then talk to the replica themselves.

What it refuses
- To guess what a replica costs: it scales on how many wait, within bounds.
- To make a call again that a replica took with it when it died: nobody knows how far it came.

Reading order
- ``sizing.py``, ``affinity.py``  how many replicas; which had a key last
- ``events.py``, ``elastic.py``   the state machine
- ``recipe.py``, ``replica.py``   what a replica is made of, and its life
- ``growth.py``                   asking for more hosts
- ``shell.py``, ``desk.py``       one pool; where the leases of a process are
- ``lease.py``, ``face.py``, ``pool.py``  what users have
- ``status.py``                   the table
"""
