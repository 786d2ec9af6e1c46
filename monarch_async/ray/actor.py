"""`ray.actor`: the classes of actors and of their handles, for annotations and `isinstance`, and `exit_actor`."""

from typing import NoReturn

from monarch_async.ray.actor_class import ActorClass
from monarch_async.ray.actor_handle import ActorHandle, ActorMethod
from monarch_async.ray.actor_host import ActorExit
from monarch_async.ray.runtime import current

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]


def exit_actor() -> NoReturn:
    """End the actor that calls this, in order, and for good. Its calls that wait, and later ones, get `ActorDiedError`.

    Raises TypeError outside of actors.
    """
    if not current().context.actor_id:
        raise TypeError("exit_actor() is for the methods of actors, and this is none")
    raise ActorExit
