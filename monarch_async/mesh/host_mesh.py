"""Host meshes: machines, each with an agent."""

from collections.abc import Mapping, Sequence

from monarch_async.control.host import Host
from monarch_async.mesh.detachment import detach
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.proc_mesh import Allocation, ProcMesh
from monarch_async.mesh.proc_recipe import Env, ProcRecipe, check_mesh_name, extent_of_procs
from monarch_async.mesh.sliced import Sliced
from monarch_async.mesh.status import Status, fetch_status
from monarch_async.ranks import Extent, Region


class HostMesh(Sliced):
    """Hosts, addressed along the axis ``hosts``. Made by `local_hosts`, `attach`, or `this_host` in an actor.

    It stays as it was made, as all meshes do: hosts that join later are not in it (`Cluster.hosts` has them). One that
    is lost stays in it too, and can be used again once it has come back.
    """

    def __init__(self, hosts: Sequence[Host], region: Region | None = None, name: str = "hosts") -> None:
        """``hosts`` in rank order."""
        self.name = name
        self._hosts = tuple(hosts)
        self.region = region if region is not None else Region.full(Extent(hosts=len(self._hosts)))

    def seen_through(self, region: Region) -> "HostMesh":
        """Return the same hosts through another region."""
        return HostMesh(self._hosts, region, self.name)

    @property
    def identity(self) -> tuple[Host, ...]:
        """The hosts it is a slice of."""
        return self._hosts

    @property
    def hosts(self) -> list[Host]:
        """The members, in rank order of this slice."""
        return [self._hosts[rank] for rank in self.region.base_ranks]

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        *,
        name: str = "procs",
        env: Env | None = None,
        preload: Sequence[str] | None = None,
        start: str = "fork",
        python: str | None = None,
        cwd: str | None = None,
        detached: str | None = None,
    ) -> ProcMesh:
        """Start worker processes on every host of this mesh; return their mesh, with the axes of both.

        It may be used at once; ``await`` it to wait until all are up. Where some cannot be started that raises
        SpawnFailed or HostLost, once the others are ended: there is a whole mesh, or none.

        Args:
            per_host: axes and sizes of the procs on each host: ``{"gpus": 4}``; one proc where not given.
            name: what the procs are called in messages and log prefixes.
            env: environment variables, or a function from `Point` to them; set before any of your code is imported.
            preload: modules imported once, in the process workers are forked from. By default torch, where this program
                has imported it.
            start: ``"fork"`` from a warm process (milliseconds), or ``"spawn"``: a fresh interpreter, for libraries
                that cannot be forked and variables that are read when the interpreter starts.
            python: another interpreter or environment; implies ``"spawn"``. It must have this package.
            cwd: working directory; the client's where not given.
            detached: a name under which they outlive this program: they end neither with a block nor with its client,
                but when they are stopped. Until then any program adopts them, once this one is gone: see
                `Cluster.adopt`. Not for hosts of `local_hosts`, which end with it.

        Raises ExtentError for sizes or axes that make no mesh, BadCall for other arguments; nothing is started then.
        Where ``detached`` is taken, what is awaited raises LeaseHeld.
        """
        check_mesh_name("spawn_procs", name)
        extent, count = extent_of_procs(self.extent, per_host)
        recipe = ProcRecipe.of(env, preload, start, python, cwd)
        hosts = [host for host in self.hosts for _ in range(count)]
        domain = active_domain()
        return Allocation(domain, name, extent, hosts, recipe, 0, detach(domain, detached, hosts)).mesh

    async def status(self) -> Status:
        """Return what these hosts are doing: procs, actors, calls in flight; ``print`` shows it as a table.

        Waits for all, about a second where a proc's loop is blocked. Raises HostLost where a host is gone.
        """
        return await fetch_status(active_domain().requests, [host.id for host in self.hosts])


def this_host() -> HostMesh:
    """Return the host this code runs on, in an actor; in the client, the first of its hosts.

    Raises HostLost or Closed where there is none, as `Cluster.hosts` does.
    """
    domain = active_domain()
    if not (hosts := domain.hosts[:1]):
        raise domain.why_no_host()
    return HostMesh(hosts, name="this_host")
