"""`get_node_ip_address`: where this host is reached."""

from monarch_async.ray.runtime import current


def get_node_ip_address(address: str | None = None) -> str:
    """Return the address of the host that this process runs on: what its row in ``ray.nodes()`` has.

    ``address`` is taken as programs give it, and changes nothing. A process that holds no actor asks for it, once.
    """
    mine = current()
    if not mine.node_address:
        mine.node_address = mine.ask_hub("node.address")
    return mine.node_address
