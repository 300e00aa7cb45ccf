"""One MQTT 5 connection that reconnects by itself."""
