"""TLS servers: trusted ones work; others are refused within 5 s, with an error that names the remedy."""

import asyncio
import contextlib
import socket
import ssl
import subprocess

import pytest
from support.servers import HOST, RedisProcess, find_binary, free_port

from ray_messaging import Messager, RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed, MessagingError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList
from ray_messaging.transports.connection.link import RedisLink

CONNECT_S = 10  # twice the promised 5 s: other processes may use the machine

# Python 3.13 asks for these, and for the authority's key usage.
KEYS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# name -> authority, the name that it certifies, days from today
CERTIFICATES = {
    "server": ("ca", f"IP:{HOST}", 2),
    "client": ("ca", "DNS:client", 2),
    "misnamed": ("ca", "DNS:somebody.example", 2),
    "expired": ("ca", f"IP:{HOST}", -1),
    "forged": ("stranger", f"IP:{HOST}", 2),
    "unknown": ("stranger", "DNS:client", 2),
}
ASKING = {"tls_auth_clients": "yes"}
OLD = {"tls_protocols": '"TLSv1.1"', "tls_ciphers": "ALL:@SECLEVEL=0"}
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Give a folder with <name>.pem and <name>.key of all, made by openssl, and of the authorities ca and stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    program = find_binary("openssl")

    def openssl(*args):
        subprocess.run([program, *map(str, args)], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "stranger"):
        openssl("req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    for name, (authority, alternative, days) in CERTIFICATES.items():
        openssl("req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n{KEYS}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-days", days, "-out", f"{name}.pem", "-extfile", f"{name}.ext")  # fmt: skip
    openssl("pkey", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    return folder


@pytest.fixture(scope="module")
def servers(certificates, tmp_path_factory):
    """Start a server on first use, per certificate; each listens without TLS, too, on another port."""
    started = {}

    def start(name="server", **options):
        key = (name, *sorted(options.items()))
        if key not in started:
            settings = {
                "tls_cert_file": certificates / f"{name}.pem",
                "tls_key_file": certificates / f"{name}.key",
                "tls_ca_cert_file": certificates / "ca.pem",
                "tls_auth_clients": "no",
                "tls_port": free_port(),
                "appendonly": "no",
            } | options
            folder = tmp_path_factory.mktemp("tls-redis")
            # The Valkey that the package brings is built without TLS.
            started[key] = process = RedisProcess(folder, binary="redis-server", **settings)
            process.tls_port = settings["tls_port"]
            process.start()
        return started[key]

    yield start
    for process in started.values():
        process.kill()


@pytest.fixture
def tls(servers, certificates):
    """Return how to connect to such a server; certificates are given by their names."""

    def config(name="server", *, options=None, **changes):
        process = servers(name, **options or {})
        settings = {"ssl": True, "ssl_ca_certs": "ca.pem", "port": process.tls_port} | changes
        files = {key: str(certificates / file) for key, file in settings.items() if key in FILES and file}
        return RedisConfig(**{"server": HOST, "password": process.config.password, "timeout": 10} | settings | files)

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


async def test_messages_verdicts_and_publications_travel(tls, exp_id, opener):
    config = tls()
    interceptor = Interceptor(exp_id, [BlackList([(1, 3)])])
    receiver = await opener(config, name="b", host=[2, 3], listen=[f"exps:{exp_id}:user-payback"])
    sender = await opener(config, interceptor, name="a")
    receipts = [await sender.send_message(receiver.get_agent_chat_channel(to), {"n": to}, 1, to) for to in (2, 3)]
    assert [receipt.fate for receipt in receipts] == ["delivered", "blocked"]
    assert [message.payload for message in await receiver.fetch_messages(timeout=60)] == [{"n": 2}]
    assert await sender.engine.transport.link.command("PUBLISH", f"exps:{exp_id}:user-payback", b'{"a":1}') == 1
    assert [message.payload for message in await receiver.fetch_messages(timeout=60)] == [{"a": 1}]


INVALID = "check ssl_ca_certs, the certificate's dates, and that it names the host"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        pytest.param("server", {"ssl_ca_certs": "stranger.pem"}, ["cannot be trusted", "ssl_ca_certs"], id="authority"),
        pytest.param("server", {"ssl_ca_certs": None}, ["cannot be trusted"], id="authority unknown to the system"),
        pytest.param("misnamed", {}, ["IP address mismatch", INVALID], id="another name"),
        pytest.param("expired", {}, ["expired", INVALID], id="expired"),
        pytest.param("forged", {}, ["unable to get", INVALID], id="forged"),
        pytest.param("server", {"ssl": False, "ssl_ca_certs": None}, ["set ssl=True"], id="a plain client"),
        pytest.param("server", {"password": "none of its passwords"}, ["password"], id="a wrong password"),
        pytest.param("server", {"options": OLD}, ["1.2 or newer"], id="only old TLS"),
    ],
)
async def test_a_connection_that_cannot_be_is_refused(tls, name, changes, words):
    error = await refused(tls(name, **changes))
    for said in words:
        assert said in str(error)


@pytest.mark.long
async def test_a_tls_client_on_a_plain_port_is_refused(tls, servers):
    error = await refused(tls(port=servers().config.port))
    assert "ssl=False" in str(error)


async def test_a_server_that_requires_a_client_certificate_works(tls, exp_id, opener):
    assert "ssl_certfile" in str(await refused(tls(options=ASKING)))
    stranger = {"ssl_certfile": "unknown.pem", "ssl_keyfile": "unknown.key"}
    assert "ssl_certfile" in str(await refused(tls(options=ASKING, **stranger)))
    config = tls(options=ASKING, ssl_certfile="client.pem", ssl_keyfile="client.key")
    receiver = await opener(config, name="b", host=[2])
    sender = await opener(config, name="a")
    assert await sender.send_message(sender.get_agent_chat_channel(2), {}, 1, 2)
    assert len(await receiver.fetch_messages(timeout=60)) == 1


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


async def test_invalid_certificate_files_are_refused(tls):
    for changes, name in [
        ({"ssl_ca_certs": "/nowhere/ca.pem"}, "ssl_ca_certs"),
        ({"ssl_ca_certs": "ca.key"}, "ssl_ca_certs"),
        ({"ssl_certfile": "/nowhere/client.pem"}, "ssl_certfile"),
        ({"ssl_certfile": "client.pem", "ssl_keyfile": "server.key"}, "ssl_keyfile"),
        ({"ssl_certfile": "client.pem", "ssl_keyfile": "locked.key"}, "ssl_keyfile"),
    ]:
        with pytest.raises(ConfigError, match=name):
            async with Messager(tls(**changes), "tls-files"):
                pass
