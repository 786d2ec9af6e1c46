"""Bytes to messages and back, without I/O.

This floor knows what travels and nothing of how: no sockets, no clocks, no tasks. Everything here can be tested by
handing it bytes in any split.

- ``frame``: the fixed header an agent routes by.
- ``message``: the small msgpack fields behind it.
- ``payload``: Python values as pickle protocol 5 with their large buffers beside it.
- ``ticket``: who will receive a value that is being pickled.
- ``object_layout``: the bytes of a shared object.
- ``culprit``: which part of a value does not pickle.
- ``tensor``: torch tensors as Arrow.
- ``strided``: where the elements of an n-d array lie, as runs of bytes.
- ``array``, ``layout``, ``exchange``: tensors and nested dicts of them as memory, and what a transfer moves where;
  ``packed``: how they travel in one piece; ``accelerator``: the memory of torch's devices.
- ``chunk``: the frames of the data plane, which carry checksums.
- ``auth``: both ends prove that they hold the cluster's token before anything else is parsed.
- ``link``: numbered frames and acknowledgements, so that a dropped connection can be resumed without loss.

It refuses to unpickle for agents: an agent imports ``frame``, ``auth`` and ``link`` only. Frames carry no checksum:
TCP and unix sockets have theirs, and bulk bytes get one on the data plane.
"""
