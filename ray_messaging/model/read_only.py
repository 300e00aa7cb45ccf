"""A dict, and objects, that a run passes to a model, and that the model cannot change.

A run keeps only the agents' states from step to step, so a change of anything else would be lost.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes, for the data of an agent: a change would be lost when a step runs again."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("an agent's data cannot be changed: change a copy, dict(me.data), and keep it in me.state")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is a plain dict, which can be changed


class ReadOnlyAttributes:
    """Base of the objects that a run passes to a model: most of their attributes cannot be set.

    A change would be lost when the step runs again, or when the run goes on in another process.

    `_called` is the object's name in errors, `_given` the names of the attributes that cannot be set.
    """

    __slots__ = ()
    _called: ClassVar[str]
    _given: ClassVar[Collection[str]]
    _put = object.__setattr__  # sets any attribute

    def __setstate__(self, state: tuple[None, dict[str, object]]) -> None:
        """Set the attributes of a copy. `copy.copy` calls this method."""
        for name, value in state[1].items():
            self._put(name, value)

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __setattr__(self, name: str, value: object) -> None:
            if name in self._given:
                where = self._called
                raise AttributeError(
                    f"{where}.{name} cannot be set, because the run does not keep it from step to step: keep the value "
                    f"in {where}.state, and read it there"
                )
            self._put(name, value)
