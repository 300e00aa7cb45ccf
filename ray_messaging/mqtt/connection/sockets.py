"""Sockets of MQTT connections: opened off the event loop, buffered, with reading that can pause."""

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Iterator

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConfigError

_READ_BYTES = 64 * 1024  # above 500 small packets, the most that one turn of the event loop should handle
_KERNEL_BYTES = 1024 * 1024  # frames take 100 kB to some MB, and the kernel's default send buffer is 16 kB
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux only; POLLHUP and POLLERR are always reported


class BufferedSocket:
    """Non-blocking socket that reads and writes with few system calls, with the methods that paho calls.

    paho reads the head of each packet byte by byte, and copies the rest of a packet after each partial write.
    """

    def __init__(self, inner: socket.socket) -> None:
        self.inner = inner
        self.held_open = False  # makes `close` do nothing: paho closes as soon as DISCONNECT is written
        self._read = b""
        self._at = 0
        self._unsent = memoryview(b"")

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; raise as the socket does when there are none."""
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
            # Set after each read, because the kernel resets it. Without it, a broker with Nagle's algorithm (Mosquitto
            # without set_tcp_nodelay) delays small packets by the 40 ms after which our kernel acknowledges.
            self.inner.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        return data

    def pending(self) -> int:
        """Return how many bytes can be read without the kernel."""
        inside = self.inner.pending() if isinstance(self.inner, ssl.SSLSocket) else 0
        return len(self._read) - self._at + inside

    @property
    def unsent(self) -> bool:
        """Return whether bytes accepted by `send` still wait for the kernel."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send the waiting bytes; raise BlockingIOError (TLS: SSLWantWriteError) if the kernel does not take all."""
        while self._unsent:
            self._unsent = self._unsent[self.inner.send(self._unsent) :]

    def send(self, data: bytes | bytearray) -> int:
        """Accept all of `data`, which must not change afterwards; raise as `flush` while earlier data waits."""
        self.flush()
        sent = self.inner.send(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
        return len(data)

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - paho's protocol
        """Set the blocking mode."""
        self.inner.setblocking(flag)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self.inner.fileno()

    def close(self) -> None:
        """Close, unless it is held open."""
        if not self.held_open:
            self.inner.close()

    async def linger(self, longest_s: float) -> None:
        """Shut down sending, and wait until the other side has closed.

        If a socket is closed with unread bytes, the kernel resets the connection, and the broker publishes the will.
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
                pass  # a reset also closes
            loop.remove_reader(self.inner)
            hung_up.set_result(None)

        try:
            self.inner.shutdown(socket.SHUT_WR)
        except OSError:  # it has closed already
            return
        loop.add_reader(self.inner, read)
        try:
            await asyncio.wait({hung_up}, timeout=longest_s)
        finally:
            loop.remove_reader(self.inner)


class ReadGate:
    """Reading of one connection, which can be paused; while an answer is awaited, everything is read."""

    def __init__(self, read: Callable[[], None]) -> None:
        self.open = False
        self._loop = asyncio.get_running_loop()
        self._read = read
        self._fileno = -1
        self._paused = False
        self._awaited = 0

    def start(self, fileno: int) -> None:
        """Read from a socket that has just been opened."""
        self._fileno = fileno
        self._update()

    def stop(self) -> None:
        """Stop reading for good; the socket is not closed yet."""
        if self.open:
            self._loop.remove_reader(self._fileno)
        self.open, self._fileno = False, -1

    def pause(self, *, paused: bool) -> None:
        """Stop or resume reading; bytes that were read already may still be handled."""
        self._paused = paused
        self._update()

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Read even while paused: the answer comes behind everything that the broker sent before."""
        self._awaited += 1
        self._update()
        try:
            yield
        finally:
            self._awaited -= 1
            self._update()

    def _update(self) -> None:
        wanted = self._fileno >= 0 and (self._awaited > 0 or not self._paused)
        if wanted == self.open:
            return
        self.open = wanted
        if wanted:
            self._loop.add_reader(self._fileno, self._read)
            self._loop.call_soon(self._read)  # for buffered bytes
        else:
            self._loop.remove_reader(self._fileno)

    def hung_up(self) -> bool:
        """Return whether the other side has closed, which is not noticed without reading."""
        poll = select.poll()
        poll.register(self._fileno, _HUNG_UP)
        return bool(poll.poll(0))


async def open_socket(config: MqttConfig) -> socket.socket:
    """Connect to the broker, with TLS if the config asks for it; leave no socket behind when cancelled.

    Raises: OSError (including ssl.SSLError), UnicodeError for an impossible host name, ConfigError for unusable TLS
    files.
    """
    # In a thread, because name resolution and the TLS handshake block.
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
        # Packets are written whole, so Nagle's algorithm gains nothing.
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
            # Without a password argument OpenSSL asks on the terminal.
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    except OSError as error:
        raise ConfigError(
            f"cannot use the TLS files (ssl_ca_certs={config.ssl_ca_certs!r}, ssl_certfile={config.ssl_certfile!r}, "
            f"ssl_keyfile={config.ssl_keyfile!r}): {error}; they must be PEM files that we may read, the key without "
            "a password"
        ) from error
    return context
