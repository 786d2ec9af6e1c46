"""What `init` returns."""

import platform
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime


#: The version of Ray whose API this is.
VERSION = "2.60.0"


class InitContext:
    """Facts about the session. As a ``with`` block it ends it: ``with ray.init(): ...``."""

    def __init__(self, runtime: "Runtime") -> None:
        """Of this one."""
        self._runtime = runtime
        self.dashboard_url: str | None = None
        self.python_version = platform.python_version()
        self.ray_version = VERSION
        self.ray_commit = ""

    @property
    def address_info(self) -> dict[str, Any]:
        """Where it is."""
        host = self._runtime.domain.hosts[0]
        address = host.url or "local"
        return {
            "node_ip_address": "127.0.0.1", "address": address, "gcs_address": address, "session_dir": "",
            "node_id": self._runtime.node_id, "webui_url": None, "object_store_address": "", "raylet_socket_name": "",
        }  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return one of `address_info`."""
        return self.address_info.get(name, default)

    def disconnect(self) -> None:
        """End the session."""
        from monarch_async.ray.driver import shutdown

        shutdown()

    def __enter__(self) -> "InitContext":
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.disconnect()

    def __repr__(self) -> str:
        return f"<ray facade on {', '.join(host.name for host in self._runtime.domain.hosts)}>"
