"""Connections to a broker that are cut within a batch, or fight for one name."""

import asyncio
import json

from support.contracts import WAIT_S, fetch_all

from ray_messaging.common.backoff import MQTT_RECONNECT, Backoff
from ray_messaging.compat.mqtt import Messager as MqttMessager
from ray_messaging.compat.mqtt.mqtt_connection import Connection
from ray_messaging.errors import ConnectionFailed


async def test_sends_before_a_cut_within_their_batch_have_their_own_receipts(mosquitto_config, exp_id, monkeypatch):
    messager = MqttMessager(mosquitto_config)
    await messager.connect()
    await messager.subscribe([f"a/{exp_id}"], ["whoever"])
    await messager.start_listening()
    wait_up, calls = Connection.wait_up, []

    async def cut_at_the_third(connection):
        calls.append(connection)
        if len(calls) == 3:
            raise ConnectionFailed("nothing was sent", host="", port=0)
        await wait_up(connection)

    monkeypatch.setattr(Connection, "wait_up", cut_at_the_third)
    sending = (messager.send_message(f"a/{exp_id}", {"n": n}) for n in range(4))
    found = await asyncio.gather(*sending, return_exceptions=True)
    assert [isinstance(each, ConnectionFailed) for each in found] == [False, False, True, True]
    assert all(each.sent for each in found[:2])
    assert [json.loads(message.payload)["n"] for message in await fetch_all(messager, 2)] == [0, 1]
    await messager.stop()


async def test_two_clients_of_one_name_are_told_of_each_other_and_pause_longer_and_longer(
    mosquitto, caplog, monkeypatch
):
    next_pause, grown = Backoff.next_pause, asyncio.Event()

    def noted(backoff):
        pause_s = next_pause(backoff)
        if pause_s > 10 * MQTT_RECONNECT.first_s:
            grown.set()
        return pause_s

    monkeypatch.setattr(Backoff, "next_pause", noted)
    first, second = MqttMessager(mosquitto.config, name="ann"), MqttMessager(mosquitto.config, name="ann")
    async with first, second, asyncio.timeout(WAIT_S):
        await grown.wait()
    assert "is there another client 'mqtt-ann-out'?" in caplog.text
