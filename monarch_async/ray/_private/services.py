"""`get_node_ip_address`, under its older name."""

from monarch_async.ray.util.node_address import get_node_ip_address

__all__ = ["get_node_ip_address"]
