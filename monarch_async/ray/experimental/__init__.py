"""Of Ray's experimental parts, the state of actors and nodes alone.

Programs look there whether an actor still lives. What else Ray has under this name is not offered, and says so: see
`monarch_async.ray.missing`.

- ``state``    rows about actors and nodes
"""
