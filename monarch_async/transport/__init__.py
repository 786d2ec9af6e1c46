"""Sockets: connections that carry frames, and how they come about.

- ``connection``: one peer; frames out and in, a link where the session must outlive its sockets, a lane for bulk.
- ``turns``: what waits in that lane, and how little of it in the kernel.
- ``url``: addresses (``tcp://host:port``, ``tls://host:port``, ``unix:///path``).
- ``dial``: listening, dialling, the handshake over a socket.
- ``tls``: encryption: settings, certificates, what is wrong with them; ``tls_server`` listens with it.
- ``session``: the dialling end of a connection that is redialled while its window lasts.
- ``loop``: which event loop a process runs on.
- ``inproc``: what stands for a socket in tests: two transports joined within one loop, which cut and break to order.

Nothing here knows what a frame means. There are no asyncio streams: a reader task per connection costs half the rate.
"""
