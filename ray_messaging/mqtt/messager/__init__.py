"""AgentSociety's Messager on MQTT."""
