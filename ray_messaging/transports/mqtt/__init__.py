"""The transport over an MQTT 5 broker (extra `mqtt`)."""
