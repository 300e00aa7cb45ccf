"""The commands `ray-messaging metrics`."""
