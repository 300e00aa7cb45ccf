"""Types of other systems: AgentScope's Msg, AgentSociety's supervisors and its Messager on MQTT, payload objects."""
