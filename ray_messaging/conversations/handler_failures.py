"""What is told of a handler that has failed: the reason of its message's dead letter, and what its asker gets."""

from typing import Any, NamedTuple

_MOST_TEXT = 1000  # characters of an error's text: it may quote what it could not read


class HandlerFailure(NamedTuple):
    """The error of a handler: the name of its type, its text, and how often the handler was tried."""

    error: str
    text: str
    attempts: int = 1

    @classmethod
    def of(cls, error: BaseException, attempts: int = 1) -> "HandlerFailure":
        """Build from an error; its text is cut, and half an emoji is quoted, so that it can travel."""
        try:
            text = str(error)[:_MOST_TEXT]
        except Exception as broken:  # noqa: BLE001 - the text is the user's own code
            text = f"its text cannot be made: {type(broken).__name__}"
        return cls(type(error).__name__, text.encode(errors="backslashreplace").decode(), attempts)

    @property
    def reason(self) -> str:
        """Return why the message is a dead letter."""
        times = f" {self.attempts} times" if self.attempts > 1 else ""
        return f"its handler failed{times}: {self.told}"

    @property
    def told(self) -> str:
        """Return the error in one line."""
        return f"{self.error}: {self.text}" if self.text else self.error

    @property
    def payload(self) -> dict[str, Any]:
        """Return what the asker gets in place of an answer."""
        return {"error": self.error, "text": self.text}
