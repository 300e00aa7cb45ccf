"""One MQTT 5 connection, made again when it is cut."""
