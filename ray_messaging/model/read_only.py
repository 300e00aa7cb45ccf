"""A dict that cannot be changed."""

from typing import Any, NoReturn


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes, for the data of an agent: a change would be lost when a step runs again."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("an agent's data cannot be changed: change a copy, dict(me.data), and keep it in me.state")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is a plain dict, which can be changed
