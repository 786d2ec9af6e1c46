"""An actor that says, takes and hands on what nobody on the way may read."""

import monarch_async as ma

MARKER = b"nobody on the way may read this. "


class Secretive(ma.Actor):
    @ma.endpoint
    async def echo(self, data: bytes) -> bytes:
        print(MARKER.decode(), flush=True)
        return data

    @ma.endpoint
    async def tell(self, other: "Secretive", size: int) -> int:
        """Send large and small secrets to another actor, which may be on another host."""
        large = MARKER * (size // len(MARKER))
        small = await other.echo.call_one(MARKER)
        return len(await other.echo.call_one(large)) + len(small)

    @ma.endpoint
    async def ways(self) -> list[tuple[str, str]]:
        """How large payloads came here: from whom, over what."""
        return [(row.peer, row.transport) for row in ma.transports()]
