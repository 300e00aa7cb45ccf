"""The tokens and the money that calls by `me.remember` use.

Money is counted in whole units of 10^-12 of a currency, never in floats.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, Final

import msgspec

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError

# A price of a million tokens has up to 6 decimal places, so the price of one token has up to 12.
_PARTS_DIGITS: Final = 12
_MOST_TOKENS: Final = 2**40  # larger numbers are refused, because their sums may not fit 64 bits


class CallUsage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tokens of one call through `me.remember`, including those of failed tries, and their cost.

    `cached` is the number of the `input` tokens that came from a cache. `model` names the models that have answered.
    `cost` is in units of 10^-12 of the currency (None: there is no price).
    """

    model: str | None
    input: int
    cached: int
    output: int
    cost: int | None

    @property
    def tokens(self) -> int:
        """Return the number of input and output tokens."""
        return self.input + self.output

    def __add__(self, more: "CallUsage") -> "CallUsage":
        names = dict.fromkeys(name for each in (self, more) if each.model for name in each.model.split(" + "))
        cost = None if self.cost is None and more.cost is None else (self.cost or 0) + (more.cost or 0)
        return CallUsage(
            " + ".join(names) or None,
            self.input + more.input,
            self.cached + more.cached,
            self.output + more.output,
            cost,
        )


def parts_of(money: Decimal) -> int:
    """Return an amount of money in units of 10^-12 of its currency."""
    return int(money.scaleb(_PARTS_DIGITS))


def money_of(parts: int) -> Decimal:
    """Convert an amount in units of 10^-12 of a currency (see `parts_of`) to money, without zeros at the end."""
    found = Decimal(parts).scaleb(-_PARTS_DIGITS).normalize()
    return found.quantize(Decimal(1)) if found == found.to_integral() else found


class CallMeter:
    """Counter of the tokens and the money that one call of a function by `me.remember` has used, in all of its tries.

    `waiting` is True while the call waits until a limit allows it to begin, or to try again.

    Args: `price` is called with the arguments of `add`, and returns their cost (None: there are no prices). `step` is
    the step for which the call is made.
    """

    __slots__ = ("_price", "step", "used", "waiting")

    def __init__(self, price: Callable[[str | None, int, int, int], int] | None, step: int = 0) -> None:
        self.step = step
        self.waiting = False
        self.used: CallUsage | None = None
        self._price = price

    def add(self, model: str | None, given: int, cached: int, output: int) -> None:
        """Count the tokens of one answer. Raises ConfigError if the model has no price.

        Args: `given` is the number of input tokens, of which `cached` came from a cache; `output` is the number of
        output tokens.
        """
        cost = None if self._price is None else self._price(model, given, cached, output)
        more = CallUsage(model, given, cached, output, cost)
        self.used = added(self.used, more)


def added(used: CallUsage | None, more: CallUsage | None) -> CallUsage | None:
    """Return the sum of two usages; None means that nothing was used."""
    return used if more is None else more if used is None else used + more


# The meter of the call by `me.remember` that runs in this context.
metering: ContextVar[CallMeter | None] = ContextVar("metering", default=None)


def report_usage(
    answer: Any = None,  # noqa: ANN401 - an answer of any client
    /,
    *,
    model: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cached_tokens: int = 0,
) -> None:
    """Report the tokens that an answer has used. Call this in a function that `me.remember` calls.

    A function that returns an answer of OpenAI as a dict need not call this. A function that asks a model several times
    must report each answer. Outside of calls by `me.remember`, nothing is counted.

    Args:
        answer: An answer with a `usage` in the form of OpenAI's API: an object or a dict. For other answers pass the
            numbers.
        model: The model whose price is used; None: the model that the answer names.
        input_tokens: The number of tokens of the prompt, including those from a cache.
        output_tokens: The number of tokens of the answer.
        cached_tokens: The number of input tokens that came from a cache of the server.

    Raises: ConfigError if the answer has no usage, a number of tokens is invalid, or the model has no price.
    """
    meter = metering.get()
    if answer is not None:
        found = _reported(answer)
        if found is None:
            raise ConfigError(
                f"{short_repr(answer)} has no usage in the form of OpenAI's answers: write "
                "report_usage(input_tokens=..., output_tokens=...)"
            )
        named, *tokens = found
    elif input_tokens is None or output_tokens is None:
        raise ConfigError(
            "report_usage() needs the answer of the model's server, which has the numbers of tokens as `usage`, or "
            "both input_tokens= and output_tokens=: pass one or the other"
        )
    else:
        named, tokens = None, [input_tokens, cached_tokens, output_tokens]
    given, cached, output = tokens
    if not _are_counts(given, cached, output):
        raise ConfigError(
            f"input_tokens={given!r}, cached_tokens={cached!r}, output_tokens={output!r}: numbers of "
            "tokens must be whole and at least 0, but below 2**40, and cached_tokens at most input_tokens"
        )
    if meter is not None:
        meter.add(named if model is None else model, given, cached, output)


def read_usage(meter: CallMeter, answer: object, needed_of: str | None) -> None:
    """Count the usage in the result of a function, unless the function has already reported a usage.

    The result is used only if it is a dict with numbers of tokens, because `usage` may mean something else in a user's
    dict.

    Args: `needed_of` is the name of the function if it must report its usage, or None.

    Raises: ConfigError if the function must report its usage, but has not done so.
    """
    found = _reported(answer) if meter.used is None and isinstance(answer, dict) and "usage" in answer else None
    if found is not None and _are_counts(*found[1:]):
        meter.add(*found)
    if meter.used is None and needed_of is not None:
        raise ConfigError(
            f"{needed_of} has not said how many tokens it used, and Calls has a limit of tokens or of money: call "
            "ray_messaging.report_usage in it, with the answer of the server, or with the numbers of tokens"
        )


def _reported(answer: object) -> tuple[str | None, int, int, int] | None:
    """Return the model, and the numbers of input, cached and output tokens, from an answer in OpenAI's form.

    Return None if the answer does not have these numbers.
    """
    usage = _part(answer, "usage")
    given, output = _first(usage, "prompt_tokens", "input_tokens"), _first(usage, "completion_tokens", "output_tokens")
    if given is None or output is None:
        return None
    details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
    model = _part(answer, "model")
    return model if isinstance(model, str) else None, given, _part(details, "cached_tokens") or 0, output


def _are_counts(given: object, cached: object, output: object) -> bool:
    """Return whether the numbers of input (`given`), cached and output tokens are valid.

    At most `given` tokens can come from a cache.
    """
    if type(given) is int and type(cached) is int and type(output) is int:
        return 0 <= cached <= given < _MOST_TOKENS and 0 <= output < _MOST_TOKENS
    return False


def _first(of: object, *names: str) -> Any:  # noqa: ANN401 - what a server has sent
    return next((found for name in names if (found := _part(of, name)) is not None), None)


def _part(of: object, name: str) -> Any:  # noqa: ANN401 - what a server has sent
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)
