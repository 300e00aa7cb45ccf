"""Options for redis-py's connections, including TLS, and explanations of TLS errors."""

import ssl
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from ray_messaging.common.sockets import keepalive_options
from ray_messaging.config import RedisConfig
from ray_messaging.default_limits_and_leases import CONNECT_TIMEOUT_S
from ray_messaging.errors import ConfigError

try:
    from redis.driver_info import DriverInfo
except ImportError:  # this release of redis-py reads its version only once, so it needs no option
    _DRIVER = dict[str, Any]()
else:
    # Without this, redis-py reads its package's metadata for each connection, which takes 1.5 ms.
    _DRIVER = {"driver_info": DriverInfo()}

_HUNG_UP = ("closed by server", "connection was cut", "reset by peer", "reset")


def connection_options(config: RedisConfig) -> dict[str, Any]:
    """Return the options with which redis-py connects to a server."""
    options: dict[str, Any] = {
        "db": config.db,
        "username": config.username,
        "password": config.password,
        "socket_timeout": config.timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "socket_keepalive_options": keepalive_options(),
        "retry_on_error": [],
        "protocol": 2,
        **_DRIVER,
    }
    if config.server.startswith("/"):
        return options | {"unix_socket_path": config.server}
    return options | {"host": config.server, "port": config.port, "ssl": config.ssl} | tls_options(config)


def tls_options(config: RedisConfig) -> dict[str, Any]:
    """Return redis-py's options for TLS, or {} if the config has no TLS.

    Raises: ConfigError if a certificate or key is unusable.
    """
    if not config.ssl:
        return {}
    _check_files(config)
    return {
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def _check_files(config: RedisConfig) -> None:
    """Load the certificates and keys once; raise ConfigError if one cannot be used.

    Without this check, a missing file would look like a server that does not answer, and an encrypted key would ask for
    a password on the terminal.
    """
    context = ssl.create_default_context()
    try:
        name = f"ssl_ca_certs {config.ssl_ca_certs!r}"
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
        name = f"ssl_certfile {config.ssl_certfile!r} with ssl_keyfile {config.ssl_keyfile!r}"
        if config.ssl_certfile is not None:
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be used on this machine ({error}): give readable PEM files; a key must belong to the "
            "certificate, and have no passphrase"
        ) from error


def tls_trouble(error: BaseException, config: RedisConfig) -> str | None:
    """Return an explanation and a remedy if TLS is the cause of an error, otherwise None."""
    found = _ssl_error(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate cannot be trusted ({found.verify_message}): check ssl_ca_certs, the "
            "certificate's dates, and that it names the host that server= names"
        )
    if found is not None and "ALERT" in (found.reason or ""):
        return (
            f"the server ended the TLS handshake ({found.reason}): if it requires a certificate of its clients, set "
            "ssl_certfile and ssl_keyfile to a certificate that the server's authority has signed; TLS must be 1.2 or "
            "newer"
        )
    if found is not None:
        return f"TLS failed ({found.reason or found}): does the server speak TLS on this port? If not, set ssl=False"
    if config.ssl and (isinstance(error, TimeoutError | RedisTimeoutError) or not str(error)):
        return "no answer in time: check that the server runs, and speaks TLS on this port (if not, set ssl=False)"
    if not any(sign in str(error) for sign in _HUNG_UP):
        return None
    if config.ssl:
        return (
            f"{str(error).rstrip('.')}; if the server speaks no TLS on this port, set ssl=False. If it requires a "
            "certificate of its clients, set ssl_certfile and ssl_keyfile"
        )
    return (
        f"{str(error).rstrip('.')}; if the server speaks TLS on this port, set ssl=True (rediss://), and ssl_ca_certs "
        "to the certificate of the authority that signed the server's"
    )


def _ssl_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error in the chain of an error's causes, or None."""
    for _ in range(8):  # at most 8 errors are looked at, because the chain of causes may be a cycle
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
