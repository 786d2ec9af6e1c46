"""ranks."""
