"""Sockets as an MQTT client wants them: opened off the event loop, read and written by the bufferful."""

import asyncio
import socket
import ssl

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConfigError

_READ_BYTES = 64 * 1024  # above 500 small packets: what one turn of the event loop may take
_KERNEL_BYTES = 1024 * 1024  # frames are some 100 kB to some MB, and the kernel's default for sending is 16 kB
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


class BufferedSocket:
    """Read and write a non-blocking socket with few system calls, in the shape that paho asks of a socket.

    paho reads the head of each packet byte by byte, and copies what is left of a packet each time the kernel takes a
    part of it.
    """

    def __init__(self, inner: socket.socket) -> None:
        self.inner = inner
        self.held_open = False  # `close` waits until this is unset: paho closes as soon as its farewell is written
        self._read = b""
        self._at = 0
        self._unsent = memoryview(b"")

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; raise as the socket does when nothing has come."""
        if self._at == len(self._read):
            if size >= _READ_BYTES:
                return self._receive(size)
            self._read, self._at = self._receive(_READ_BYTES), 0
        part = self._read[self._at : self._at + size]
        self._at += len(part)
        return part

    def _receive(self, size: int) -> bytes:
        data = self.inner.recv(size)
        if _QUICK_ACK is not None:
            # The kernel takes it back by itself. Without it, a broker that gathers small packets (Mosquitto does,
            # unless set_tcp_nodelay) holds the next one back for the 40 ms that our kernel needs to acknowledge.
            self.inner.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        return data

    def pending(self) -> int:
        """Tell how many bytes may be read though the kernel has nothing."""
        inside = self.inner.pending() if isinstance(self.inner, ssl.SSLSocket) else 0
        return len(self._read) - self._at + inside

    @property
    def unsent(self) -> bool:
        """Tell whether bytes that `send` has taken still wait for the kernel."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what waits; raise BlockingIOError (TLS: SSLWantWriteError) when the kernel does not take all of it."""
        while self._unsent:
            self._unsent = self._unsent[self.inner.send(self._unsent) :]

    def send(self, data: bytes | bytearray) -> int:
        """Take all of `data`, which nobody may change from here on; raise as `flush` when earlier data still waits."""
        self.flush()
        sent = self.inner.send(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
        return len(data)

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - paho's protocol
        """Pass on."""
        self.inner.setblocking(flag)

    def fileno(self) -> int:
        """Pass on."""
        return self.inner.fileno()

    def close(self) -> None:
        """Pass on, unless it is held open."""
        if not self.held_open:
            self.inner.close()

    async def linger(self, longest_s: float) -> None:
        """Send no more, and wait until the other side has hung up.

        The kernel resets a connection that is closed with bytes unread, and the broker would take that for our end.
        """
        loop = asyncio.get_running_loop()
        hung_up: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                if self.inner.recv(_READ_BYTES):
                    return
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except OSError:
                pass  # reset: it has hung up, too
            loop.remove_reader(self.inner)
            hung_up.set_result(None)

        try:
            self.inner.shutdown(socket.SHUT_WR)
        except OSError:  # it was first
            return
        loop.add_reader(self.inner, read)
        try:
            await asyncio.wait({hung_up}, timeout=longest_s)
        finally:
            loop.remove_reader(self.inner)


async def open_socket(config: MqttConfig) -> socket.socket:
    """Connect to the broker, with TLS where the config says so; when cancelled, no socket is left.

    Raises: OSError (ssl.SSLError among them), UnicodeError for an impossible host name, ConfigError for TLS files that
    cannot be used.
    """
    # In a thread: the look-up of a name, and a TLS handshake, block.
    opening = asyncio.get_running_loop().run_in_executor(None, _open, config)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_discard)
        raise


def _discard(opening: "asyncio.Future[socket.socket]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open(config: MqttConfig) -> socket.socket:
    context = _tls(config) if config.ssl else None
    plain = socket.create_connection((config.server, config.port), timeout=CONNECT_TIMEOUT_S)
    try:
        # Packets are written whole, so holding small ones back gains nothing.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        wrapped = context.wrap_socket(plain, server_hostname=config.server) if context else plain
    except BaseException:
        plain.close()
        raise
    wrapped.setblocking(False)
    return wrapped


def _tls(config: MqttConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ssl_ca_certs)
        if config.ssl_certfile:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    except OSError as error:
        raise ConfigError(
            f"cannot use the TLS files (ssl_ca_certs={config.ssl_ca_certs!r}, ssl_certfile={config.ssl_certfile!r}, "
            f"ssl_keyfile={config.ssl_keyfile!r}): {error}; they must be PEM files that we may read, the key without "
            "a password"
        ) from error
    return context
