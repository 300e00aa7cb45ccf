"""The end of an event loop, for objects that live in it."""

from collections.abc import AsyncGenerator, Awaitable, Callable

Life = AsyncGenerator[None, None]


async def at_loop_end(end: Callable[[], Awaitable[object] | None]) -> Life:
    """Have a function called when the running event loop ends, or when the returned object is closed or collected.

    Asyncio closes the generators that are open when a loop ends, as the last thing in it: all tasks are cancelled.
    """
    life = _life(end)
    await anext(life)
    return life


async def _life(end: Callable[[], Awaitable[object] | None]) -> Life:
    try:
        yield
    finally:
        if (ending := end()) is not None:
            await ending
