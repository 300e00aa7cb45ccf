"""The URI of a log on an object store. This module imports nothing heavy, because `Messaging` loads it."""

import re

from ray_messaging.errors import ConfigError

IN_URL = re.compile(r"://[^/@\s]*@")  # the user and the password in a URL
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# pathlib makes one slash of two.
_URI_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)")


def checked_uri(log_dir: str) -> str:
    """Return a log_dir unchanged; raise ConfigError for a URI with a password, or one that was made a path.

    The URI of a log is in records, error texts and health reports, so it must have no secret.
    """
    if _PASSWORD.search(log_dir):
        raise ConfigError(
            f"log_dir={IN_URL.sub('://***@', log_dir)!r} has a password, and records and error texts would show it: "
            "leave it out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your store has in their place, "
            "in the environment of this program and of Ray's processes"
        )
    if found := _URI_AS_PATH.fullmatch(log_dir):
        raise ConfigError(
            f"log_dir={log_dir!r} is a URI that pathlib has changed: pass it as text, '{found[1]}://{found[2]}'"
        )
    return log_dir
