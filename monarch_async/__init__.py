"""monarch_async."""
