"""Several groups in one actor, as a user may host them: each process of Ray's takes time even when it does nothing."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import ray

from benchmarks.axes.society.member import Member


@ray.remote(num_cpus=0)
class House:
    """An actor with several members of a society."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    async def take_in(self, where: Any, name: str, *args: Any) -> None:
        """Open a group here."""
        self._members[name] = member = Member.__new__(Member)
        await member.__init__(where, name, *args)  # type: ignore[misc] - a coroutine, which Ray awaits for an actor

    async def call(self, name: str, method: str, *args: Any) -> Any:
        """Call a method of a group."""
        return await getattr(self._members[name], method)(*args)


class Lodger:
    """A group in a house, called as one in an actor of its own."""

    def __init__(self, house: Any, where: Any, name: str, *args: Any) -> None:
        ray.get(house.take_in.remote(where, name, *args))
        self._house, self._name = house, name
        self.__ray_call__ = house.__ray_call__

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._house.call.remote, self._name, method))
