"""Connecting to an MQTT broker: refusals, unreachable brokers, TLS, and no password in errors."""

import asyncio
import ssl
import subprocess
import traceback

import pytest
from support.mqtt_links import CONNACK, FakeBroker, Watched, listener, until
from support.servers import find_binary

from ray_messaging import ConfigError, ConnectionFailed
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Closed, ServerRefused
from ray_messaging.mqtt.connection import connection

SECRET = "s3cret"
HOST = "127.0.0.1"
# Python 3.13 asks for these, and for the authority's key usage.
KEYS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory):
    """Make an authority with a server's and a client's certificate, and an unknown authority."""
    folder = tmp_path_factory.mktemp("tls")
    program = find_binary("openssl")

    def openssl(*args):
        subprocess.run([program, *map(str, args)], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "stranger"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text(f"subjectAltName=IP:{HOST}\n{KEYS}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-extfile", "names")  # fmt: skip
    return folder


async def refusal(config, expected=ConnectionFailed, **options):
    """Return the error of a first connect; nothing may be left of it."""
    watched = Watched(config, "refused", **options)
    with pytest.raises(expected) as caught:
        await watched.link.connect()
    assert not watched.link.connected
    assert not watched.sessions
    await watched.link.close()
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    return caught.value


async def connects(config):
    watched = Watched(config, "welcome")
    await watched.link.connect()
    assert watched.sessions == [False]
    assert watched.link.connected
    assert await watched.link.publish("nobody/hears", b"it") == 0x10
    await watched.link.close()
    assert not watched.link.connected


async def test_a_host_that_does_not_exist():
    error = await refusal(MqttConfig(server="broker.invalid", username="ann", password=SECRET))
    assert "broker.invalid:1883" in str(error)
    assert (error.host, error.port) == ("broker.invalid", 1883)
    assert not isinstance(error, ConfigError)


@pytest.mark.parametrize("server", ["a..b", "x" * 64])
async def test_a_host_that_cannot_exist(server):
    assert server in str(await refusal(MqttConfig(server=server)))


async def test_a_port_without_a_listener_raises(unused_tcp_port):
    error = await refusal(MqttConfig(server=HOST, port=unused_tcp_port))
    assert f"{HOST}:{unused_tcp_port}" in str(error)
    assert not isinstance(error, ConfigError)


async def broken_off(fake, expected, **options):
    await fake.start()
    try:
        return await refusal(fake.config, expected, **options)
    finally:
        await fake.stop()


@pytest.fixture
def target():
    return MqttConfig(server=HOST, username="ann", password=SECRET)


async def test_a_broker_that_says_nothing(target, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.2)
    error = await broken_off(FakeBroker(target, b""), ConnectionFailed)
    assert "no answer" in str(error)


async def test_a_broker_that_hangs_up(target):
    error = await broken_off(FakeBroker(target, None), ConnectionFailed)
    assert "TLS" in str(error)


@pytest.mark.parametrize("answer", [b"\x00\x00", b"\x20\x01\x00", b"\x20\x03\x00\x77\x00"])
async def test_an_answer_that_is_no_connack(target, answer):
    error = await broken_off(FakeBroker(target, answer), ConnectionFailed)
    assert not isinstance(error, ConfigError)


@pytest.mark.parametrize("code", [0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x9A, 0x9B, 0x9C, 0x9D])
async def test_a_refusal_for_good(target, code):
    error = await broken_off(FakeBroker(target, bytes([0x20, 3, 0, code, 0])), ServerRefused)
    assert f"0x{code:02X}" in str(error)
    assert "'ann'" in str(error)
    assert f"{HOST}:{error.port}" in str(error)


@pytest.mark.parametrize("code", [0x80, 0x88, 0x89, 0x97, 0x9F])
async def test_a_refusal_that_passes(target, code):
    error = await broken_off(FakeBroker(target, bytes([0x20, 3, 0, code, 0])), ConnectionFailed)
    assert not isinstance(error, ServerRefused)
    assert f"0x{code:02X}" in str(error)


async def test_a_broker_of_an_older_mqtt(target):
    error = await broken_off(FakeBroker(target, b"\x20\x02\x00\x01"), ServerRefused)
    assert "MQTT 5" in str(error)


async def test_a_broker_that_confirms_nothing(target):
    error = await broken_off(FakeBroker(target, b"\x20\x05\x00\x00\x02\x24\x00"), ServerRefused)
    assert "QoS 0" in str(error)


async def test_connecting_can_be_given_up(target):
    fake = await FakeBroker(target, b"").start()
    watched = Watched(fake.config, "given up")
    connecting = asyncio.create_task(watched.link.connect())
    await until(lambda: fake.packets)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await watched.link.close()
    await fake.stop()


async def test_closed_while_it_connects(target):
    fake = await FakeBroker(target, b"").start()
    watched = Watched(fake.config, "closed")
    connecting = asyncio.create_task(watched.link.connect())
    await until(lambda: fake.packets)
    await watched.link.close()
    fake.say(CONNACK)
    with pytest.raises(Closed):
        await connecting
    assert not watched.sessions
    await fake.stop()


async def test_user_and_password(mosquittos):
    guarded = mosquittos(users={"ann": SECRET}).config
    await connects(guarded.model_copy(update={"username": "ann", "password": SECRET}))
    for username, password in (("ann", "wrong " + SECRET), ("bob", SECRET), ("ann", None), (None, None)):
        error = await refusal(guarded.model_copy(update={"username": username, "password": password}), ServerRefused)
        assert repr(username) in str(error)
        assert "password" in str(error)


async def test_tls(mosquittos, tls_files):
    plain = mosquittos(tls=tls_files).config
    await connects(plain.model_copy(update={"ssl": True, "ssl_ca_certs": str(tls_files / "ca.pem")}))

    assert "TLS" in str(await refusal(plain))
    for files in ({}, {"ssl_ca_certs": str(tls_files / "stranger.pem")}):
        error = await refusal(plain.model_copy(update={"ssl": True, **files}))
        assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
        assert "ssl_ca_certs" in str(error)
    error = await refusal(
        plain.model_copy(update={"server": "localhost", "ssl": True, "ssl_ca_certs": str(tls_files / "ca.pem")})
    )
    assert "localhost" in str(error)
    assert isinstance(error.__cause__, ssl.SSLCertVerificationError)


async def test_large_ones_over_tls(mosquittos, tls_files, open_link, topic):
    config = mosquittos(tls=tls_files).config.model_copy(
        update={"ssl": True, "ssl_ca_certs": str(tls_files / "ca.pem")}
    )
    there = await listener(open_link, config, topic)
    frames = [bytes([n]) * 2_000_000 for n in range(6)]
    small = [b"%d" % n for n in range(500)]
    await asyncio.gather(*(there.link.publish(topic, payload) for payload in (*frames, *small)))
    await until(lambda: len(there.arrivals) == 506)
    assert there.payloads == [*frames, *small]
    there.link.pause()
    confirmed = there.link.publish(topic, b"last")
    there.link.resume()
    await confirmed
    await until(lambda: there.payloads[-1] == b"last")


async def test_tls_on_a_port_without_it(mosquitto_config):
    error = await refusal(mosquitto_config.model_copy(update={"ssl": True}))
    assert "TLS" in str(error)


async def test_a_certificate_of_our_own(mosquittos, tls_files):
    asking = mosquittos(tls=tls_files, options=["require_certificate true"]).config
    ours = {"ssl_certfile": str(tls_files / "client.pem"), "ssl_keyfile": str(tls_files / "client.key")}
    trusting = asking.model_copy(update={"ssl": True, "ssl_ca_certs": str(tls_files / "ca.pem")})
    await connects(trusting.model_copy(update=ours))
    assert "certificate" in str(await refusal(trusting))


@pytest.mark.parametrize("field", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
async def test_tls_files_that_cannot_be_used(tls_files, field, tmp_path):
    config = MqttConfig(
        server=HOST,
        ssl=True,
        ssl_ca_certs=str(tls_files / "ca.pem"),
        ssl_certfile=str(tls_files / "client.pem"),
        ssl_keyfile=str(tls_files / "client.key"),
    )
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "absent", tmp_path / "no.pem"):
        assert str(path) in str(await refusal(config.model_copy(update={field: str(path)}), ConfigError))


@pytest.fixture
def locked_key(tls_files, tmp_path):
    locked = tmp_path / "locked.key"
    asked = ["pkey", "-in", tls_files / "client.key", "-aes128", "-passout", "pass:x", "-out", locked]
    subprocess.run([find_binary("openssl"), *asked], check=True)
    return locked


async def test_a_key_with_a_password_does_not_prompt(tls_files, locked_key):
    config = MqttConfig(server=HOST, ssl=True, ssl_certfile=str(tls_files / "client.pem"), ssl_keyfile=str(locked_key))
    assert "without a password" in str(await refusal(config, ConfigError))
