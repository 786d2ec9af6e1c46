"""How an actor ends: its ``teardown``, for as long as that may take."""

import asyncio
from typing import TYPE_CHECKING

from monarch_async.config import Config
from monarch_async.runtime.birth import find_hook, run_hook
from monarch_async.runtime.context import enter_hook

if TYPE_CHECKING:
    from monarch_async.runtime.instance import Instance


async def tear_down(instance: "Instance", config: Config) -> None:
    """Run ``teardown``, where the actor has one, for ``stop_grace`` at most; past that it is cancelled.

    One that ignores that is left behind after ``cancel_grace``. What it raises is logged: nobody waits for it.
    """
    teardown = find_hook(instance.actor, "teardown")
    if teardown is None:
        return
    enter_hook(instance, "teardown")
    running = asyncio.get_running_loop().create_task(run_hook(teardown))  # type: ignore[arg-type]
    await asyncio.wait([running], timeout=config.stop_grace)
    if not running.done():
        instance.logger.error("teardown takes longer than stop_grace (%g s): it is cancelled", config.stop_grace)
        running.cancel()
        await asyncio.wait([running], timeout=config.cancel_grace)
    if running.done() and not running.cancelled() and (error := running.exception()) is not None:
        instance.logger.error("teardown raised", exc_info=error)
