"""Connections by which one end finds that the other is gone: to a server, on lanes, and of a handle."""

import socket
import sys

import pytest

from ray_messaging.common.sockets import keepalive_options, notice_cuts
from ray_messaging.config import RedisConfig
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import LaneClient
from ray_messaging.transports.connection.connector import Connector
from ray_messaging.transports.connection.protocol import Wire

WANTED = keepalive_options()


def options_of(found):
    return {option: found.getsockopt(socket.IPPROTO_TCP, option) for option in WANTED}


def test_a_socket_without_tcp_and_a_closed_one_are_left_alone():
    first, second = socket.socketpair()
    with first, second:
        notice_cuts(first)
    notice_cuts(first)
    notice_cuts(None)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a part of the options")
def test_a_cut_is_noticed_within_half_a_minute():
    idle, probe, probes, unacknowledged = WANTED.values()
    assert idle + probe * probes < 30
    assert unacknowledged < 30_000


async def test_a_connection_to_a_server_has_the_options(valkey_config):
    tcp = RedisConfig(server=valkey_config.server, port=valkey_config.port, password=valkey_config.password)
    wire = await Wire.open(await Connector(tcp, "").make())
    try:
        assert options_of(wire._transport.get_extra_info("socket")) == WANTED
    finally:
        wire.close()


async def test_both_ends_of_a_lane_have_the_options():
    server = LaneServer(lambda request, *, patient: b"")
    client = await LaneClient.open(await server.start("127.0.0.1"))
    try:
        ends = [client, *server.connections]
        assert [options_of(end.transport.get_extra_info("socket")) for end in ends] == [WANTED, WANTED]
    finally:
        client.close()
        await server.close()
