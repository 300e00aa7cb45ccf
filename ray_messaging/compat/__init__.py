"""Types of other systems: AgentScope's Msg."""
