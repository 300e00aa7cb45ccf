"""The error of a handler of `serve`, as dead letters and askers learn of it."""

from typing import Any, NamedTuple

_MOST_TEXT = 1000  # characters of an error's text: it may quote what it could not read


class HandlerFailure(NamedTuple):
    """The error of a handler: the name of its type, its text, and how many times the handler was tried."""

    error: str
    text: str
    attempts: int = 1

    @classmethod
    def of(cls, error: BaseException, attempts: int = 1) -> "HandlerFailure":
        """Build the failure from an error.

        The error's text is cut, and lone surrogates are escaped, so that it can be sent.
        """
        try:
            text = str(error)[:_MOST_TEXT]
        except Exception as broken:  # noqa: BLE001 - the text is the user's own code
            text = f"its text cannot be made: {type(broken).__name__}"
        return cls(type(error).__name__, text.encode(errors="backslashreplace").decode(), attempts)

    @property
    def reason(self) -> str:
        """Return the reason for which the message is a dead letter."""
        times = f" {self.attempts} times" if self.attempts > 1 else ""
        return f"its handler failed{times}: {self.told}"

    @property
    def told(self) -> str:
        """Return the error as one line."""
        return f"{self.error}: {self.text}" if self.text else self.error

    @property
    def payload(self) -> dict[str, Any]:
        """Return the payload that the asker gets instead of an answer."""
        return {"error": self.error, "text": self.text}
