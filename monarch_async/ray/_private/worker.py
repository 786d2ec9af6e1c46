"""`global_worker`: what libraries ask of it, where the hub is and what this process is called."""

from monarch_async.ray.runtime import current, find
from monarch_async.ray.runtime_context import get_runtime_context, hub_address
from monarch_async.ray.util.node_address import get_node_ip_address


class GcsClient:
    """Knows where the hub is; nothing of Ray's can connect to it."""

    @property
    def address(self) -> str:
        """As ``get_runtime_context().gcs_address``."""
        return hub_address()


class Worker:
    """This process."""

    gcs_client = GcsClient()

    @property
    def connected(self) -> bool:
        """Whether the program has begun."""
        return find() is not None

    @property
    def node_ip_address(self) -> str:
        """The address of this process's host."""
        return get_node_ip_address()

    @property
    def current_node_id(self) -> str:
        """The id of this process's host."""
        return get_runtime_context().get_node_id()

    @property
    def current_job_id(self) -> str:
        """The id of this program's run."""
        return current().job_id

    @property
    def worker_id(self) -> str:
        """The id of this process."""
        return get_runtime_context().get_worker_id()

    @property
    def namespace(self) -> str:
        """In which names of actors are looked up."""
        return current().namespace


global_worker = Worker()
