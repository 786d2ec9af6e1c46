"""Durations for people."""


def format_age(seconds: float) -> str:
    """Return a duration in at most eight characters: ``0.42 s``, ``31 s``, ``4m 05s``, ``2h 07m``, ``3d 04h``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02}h"
