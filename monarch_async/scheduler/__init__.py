"""Who gets what: placement of demands on hosts. Pure: events in, commands out.

Ideas
- A demand is a gang of bundles: all of it is placed, or nothing. A task's worker is a gang of one.
- Amounts are whole numbers of small units (a ten-thousandth; memory: bytes), so books always return to zero exactly.
- The scheduler decides alone, from its own books; agents reserve what it granted, and may refuse where another client
  was first. Then it knows better and decides again.
- Nobody starves: small demands may pass a big one that does not fit, but only a few times.

What it refuses
- To enforce amounts: they are accounted. The kernel enforces.
- To wait in silence: what can never fit is rejected at once, what waits for long is explained.

Reading order
- ``resources.py``, ``demand.py``  what hosts have, what is asked for
- ``events.py``  what goes in and comes out
- ``amounts.py``, ``shape.py``  the same in whole numbers
- ``book.py``, ``books.py``  what is left of one host; of all, filed for a quick find
- ``fit.py``, ``alike.py``, ``search.py``  where a demand fits; where bundles that are alike do, and that differ
- ``feasibility.py``  whether it ever could, and what is short
- ``placement_record.py``, ``accounts.py``  a placement as it is booked; all of them
- ``waiting.py``, ``keeping.py``, ``dispatch.py``  the queue; what is kept for whom; turns
- ``takeable.py``, ``recall.py``  who may be asked to give back, and who is
- ``scheduler.py``  the state machine
- ``holdings.py``, ``table.py``, ``explanation.py``  who holds what; as it is shown; why something waits
"""
