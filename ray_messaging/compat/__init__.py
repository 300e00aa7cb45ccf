"""Adapters for programs that were written for other systems, such as AgentScope, AgentSociety, AutoGen and OASIS."""
