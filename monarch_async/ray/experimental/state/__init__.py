"""The state of actors and nodes as rows.

What the hub knows at this moment, under the names that Ray's state API gives it. ``monarch-async status`` shows more,
and from outside.

- ``api``    `get_actor`, `list_actors`, `list_nodes`
"""
