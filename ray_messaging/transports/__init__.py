"""Stores of messages: Redis, an MQTT broker (in `ray_messaging.mqtt`), or memory for tests."""
