"""What happened in a chaotic run, in order: for whoever has to find out why it failed."""

import time
from pathlib import Path


class Chronicle:
    """Lines with the seconds since the start, in a file that stays when a run fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", buffering=1)
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def note(self, what: str) -> None:
        self._file.write(f"{self.now:8.3f} {what}\n")

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.path.read_text().splitlines()[-lines:])

    def close(self) -> None:
        self._file.close()
