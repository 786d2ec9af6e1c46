"""The base of all errors."""


class Error(Exception):
    """Base of everything this package raises on its own account."""
