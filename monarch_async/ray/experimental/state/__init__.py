"""The state of actors and nodes as rows: see `api`."""
