"""``import ray`` in a process that multiprocessing has spawned from a program on the facade.

It has the `sys.path` of its parent, where `install` has put this directory, but no finder: this installs it.
"""

import sys

from monarch_async.ray.install import install

del sys.modules[__name__]  # which the facade is to be
install()
