"""The ``monarch-async`` command: what one does with a cluster from a terminal.

    monarch-async agent     be the host agent of this machine, until a signal
    monarch-async status    what hosts are doing: procs, actors, calls in flight
    monarch-async release   end procs that have outlived their program
    monarch-async demo      asynchronous reinforcement learning on this machine

Ideas
- A command is a thin face: it reads arguments, calls what any program could call, and prints. Nothing can be done here
  that the library cannot do.
- ``status`` looks and does not touch. It joins as an *observer*, which owns nothing, holds no lease, and whose coming
  and going changes nothing for anybody. Programs that use ``ma.local_hosts()`` leave their token in a folder that only
  their user can read, so ``monarch-async status`` without an address shows all programs of that user on this machine.
- What the user did wrong (an address, a token, nobody listening) is one line on stderr and a status of 1, or 2 for
  wrong arguments. A traceback means a bug of ours.

What it refuses
- An agent without a token, on whatever address: other users of a machine reach its loopback too.
- A command that stops procs or actors of a program from outside: they belong to that program, whose supervision would
  take it for a failure. End the program. What it has detached is nobody's then, and ``release`` ends it.

Reading order
- ``main.py``    the arguments, and which command runs; ``demo`` is ``examples/async_rl.py``
- ``agent.py``   `monarch-async agent`
- ``status.py``  `monarch-async status`
- ``release.py``  `monarch-async release`
- ``tls_arguments.py``  what all of them take for TLS
"""
