"""Our MQTT transport beside AgentSociety's."""
