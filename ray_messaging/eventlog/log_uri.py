"""The URI of a log on an object store. This module imports nothing heavy, because `Messaging` loads it."""

import re

from ray_messaging.errors import ConfigError

IN_URL = re.compile(r"://[^/@\s]*@")  # the user and the password in a URL
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# A URI that was made a Path: pathlib replaces two slashes by one.
_URI_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)")


def checked_uri(log_dir: str) -> str:
    """Return a log_dir unchanged; raise ConfigError for a URI that has a password, or that was made a pathlib.Path.

    Records, errors and health reports contain the URI of a log, so it must not have a secret.
    """
    if _PASSWORD.search(log_dir):
        raise ConfigError(
            f"log_dir={IN_URL.sub('://***@', log_dir)!r} has a password, which records and errors would show: "
            "leave it out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables that your store uses, "
            "in the environment of this program and of Ray's processes"
        )
    if found := _URI_AS_PATH.fullmatch(log_dir):
        raise ConfigError(
            f"log_dir={log_dir!r} is a URI that pathlib has changed: pass it as a str, '{found[1]}://{found[2]}'"
        )
    return log_dir
