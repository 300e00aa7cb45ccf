"""TLS servers: trusted ones work; others are refused within 5 s, with an error that names the remedy."""

import asyncio
import contextlib
import socket
import ssl

import pytest
from pydantic import ValidationError
from support.certificates import HOST, make_certificates
from support.servers import RedisProcess, free_port

from ray_messaging import ConfigError, ConnectionFailed, Messager, RedisConfig
from ray_messaging.errors import MessagingError
from ray_messaging.interception.rules import BlackList
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.transports.redis.connection.link import RedisLink

CONNECT_S = 10  # twice the promised 5 s: other processes may use the machine


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def servers(certificates, tmp_path_factory):
    """Start a server on first use, per certificate; each listens without TLS, too, on another port."""
    started = {}

    def start(name="server", *, asks=False):
        if (name, asks) not in started:
            files = {
                "tls_cert_file": certificates / f"{name}.pem",
                "tls_key_file": certificates / f"{name}.key",
                "tls_ca_cert_file": certificates / "ca.pem",
                "tls_auth_clients": "yes" if asks else "no",
            }
            folder = tmp_path_factory.mktemp("tls-redis")
            # The Valkey that the package brings is built without TLS.
            process = RedisProcess(
                folder, binary="redis-server", tls_port=(port := free_port()), appendonly="no", **files
            )
            process.tls_port = port
            started[name, asks] = process
            process.start()
        return started[name, asks]

    yield start
    for process in started.values():
        process.kill()


@pytest.fixture
def tls(servers, certificates):
    """Return how to connect to such a server."""

    def config(name="server", *, asks=False, **changes):
        process = servers(name, asks=asks)
        settings = {"ssl": True, "ssl_ca_certs": str(certificates / "ca.pem"), "port": process.tls_port} | changes
        return RedisConfig(**{"server": HOST, "password": process.config.password, "timeout": 10} | settings)

    return config


async def refused(config):
    """Connect in vain; return the error's text. It has no secret."""
    link = RedisLink(config, 30.0)
    with pytest.raises(MessagingError) as caught:
        async with asyncio.timeout(CONNECT_S):
            await link.connect()
    assert config.password not in str(caught.value)
    assert isinstance(caught.value, ConnectionFailed | ConfigError)
    return caught.value


async def test_messages_and_verdicts_travel(tls, exp_id, opener):
    config = tls()
    interceptor = Interceptor(exp_id, [BlackList([(1, 3)])])
    receiver = await opener(config, name="b", host=[2, 3])
    sender = await opener(config, interceptor, name="a")
    receipts = [await sender.send_message(receiver.get_agent_chat_channel(to), {"n": to}, 1, to) for to in (2, 3)]
    assert [receipt.fate for receipt in receipts] == ["delivered", "blocked"]
    assert [message.payload for message in await receiver.fetch_messages(timeout=60)] == [{"n": 2}]


async def test_a_foreign_client_is_heard_over_tls(tls, exp_id, opener):
    config = tls()
    receiver = await opener(config, name="b", listen=[f"exps:{exp_id}:user-payback"])
    link = RedisLink(config, 10.0)
    assert await link.command("PUBLISH", f"exps:{exp_id}:user-payback", b'{"a":1}') == 1
    assert [message.payload for message in await receiver.fetch_messages(timeout=60)] == [{"a": 1}]
    await link.close()


async def test_an_unknown_authority_is_refused(tls, certificates):
    error = await refused(tls(ssl_ca_certs=str(certificates / "stranger.pem")))
    assert "not to be trusted" in str(error)
    assert "ssl_ca_certs" in str(error)


async def test_a_private_authority_is_unknown_to_the_system(tls):
    assert "not to be trusted" in str(await refused(tls(ssl_ca_certs=None)))


@pytest.mark.parametrize(
    ("name", "says"), [("misnamed", "IP address mismatch"), ("expired", "expired"), ("forged", "unable to get")]
)
async def test_an_invalid_certificate_is_refused(tls, name, says):
    error = await refused(tls(name))
    assert says in str(error)
    assert "check ssl_ca_certs, the certificate's dates, and that it names the host" in str(error)


async def test_a_plain_client_on_a_tls_port_is_refused(tls):
    error = await refused(tls(ssl=False, ssl_ca_certs=None))
    assert "set ssl=True" in str(error)


@pytest.mark.long
async def test_a_tls_client_on_a_plain_port_is_refused(tls, servers):
    error = await refused(tls(port=servers().config.port))
    assert "ssl=False" in str(error)


async def test_a_server_that_requires_a_client_certificate_works(tls, certificates, exp_id, opener):
    assert "ssl_certfile" in str(await refused(tls(asks=True)))
    stranger = {"ssl_certfile": str(certificates / "unknown.pem"), "ssl_keyfile": str(certificates / "unknown.key")}
    assert "ssl_certfile" in str(await refused(tls(asks=True, **stranger)))
    ours = {"ssl_certfile": str(certificates / "client.pem"), "ssl_keyfile": str(certificates / "client.key")}
    config = tls(asks=True, **ours)
    receiver = await opener(config, name="b", host=[2])
    sender = await opener(config, name="a")
    assert await sender.send_message(sender.get_agent_chat_channel(2), {}, 1, 2)
    assert len(await receiver.fetch_messages(timeout=60)) == 1


async def test_a_wrong_password_over_tls_is_refused(tls):
    error = await refused(tls(password="none of its passwords"))
    assert "password" in str(error)


def _refuse_without_closing(listener, certificates):
    """Serve one connection without a close, until the client closes its socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    plain, _ = listener.accept()
    plain.settimeout(CONNECT_S)
    deaf = plain.dup()
    with deaf, context.wrap_socket(plain, server_side=True) as line:
        assert b"AUTH" in line.recv(1000)
        line.sendall(b"-WRONGPASS no\r\n")
        with contextlib.suppress(ConnectionError):
            while deaf.recv(1000):
                pass


async def test_a_refused_connection_does_not_wait_for_the_servers_close(tls, certificates):
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(CONNECT_S)
        served = asyncio.ensure_future(asyncio.to_thread(_refuse_without_closing, listener, certificates))
        assert "password" in str(await refused(tls(port=listener.getsockname()[1])))
        await served


async def test_invalid_certificate_files_are_refused(tls, certificates):
    client = str(certificates / "client.pem")
    for changes, name in [
        ({"ssl_ca_certs": "/nowhere/ca.pem"}, "ssl_ca_certs"),
        ({"ssl_ca_certs": str(certificates / "ca.key")}, "ssl_ca_certs"),
        ({"ssl_certfile": "/nowhere/client.pem"}, "ssl_certfile"),
        ({"ssl_certfile": client, "ssl_keyfile": str(certificates / "server.key")}, "ssl_keyfile"),
        ({"ssl_certfile": client, "ssl_keyfile": str(certificates / "locked.key")}, "ssl_keyfile"),
    ]:
        with pytest.raises(ConfigError, match=name):
            async with Messager(tls(**changes), "tls-files"):
                pass


@pytest.mark.parametrize("field", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_certificate_file_without_ssl_is_refused(field):
    with pytest.raises(ValidationError, match="ssl=True"):
        RedisConfig(server=HOST, password="s3cret", **{field: "file.pem"})
    with pytest.raises(ValidationError, match="ssl_certfile"):
        RedisConfig(server=HOST, ssl=True, ssl_keyfile="file.pem")


async def test_a_server_with_only_old_tls_is_refused(certificates, tmp_path):
    old = {"tls_protocols": '"TLSv1.1"', "tls_ciphers": "ALL:@SECLEVEL=0"}
    files = {f"tls_{kind}_file": certificates / f"server.{end}" for kind, end in (("cert", "pem"), ("key", "key"))}
    process = RedisProcess(
        tmp_path, binary="redis-server", tls_port=(port := free_port()), tls_ca_cert_file=certificates / "ca.pem",
        tls_auth_clients="no", appendonly="no", **files, **old,
    )  # fmt: skip
    try:
        process.start()
        config = process.config.model_copy(
            update={"ssl": True, "port": port, "ssl_ca_certs": str(certificates / "ca.pem")}
        )
        assert "1.2 or newer" in str(await refused(config))
    finally:
        process.kill()
