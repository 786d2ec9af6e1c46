"""`log_once`: for what would otherwise be logged in every iteration."""

_seen: set[object] = set()


def log_once(key: object) -> bool:
    """Return whether this process has not been asked for ``key`` before."""
    if key in _seen:
        return False
    _seen.add(key)
    return True
