"""Steps beside plain Ray actors, idle groups, and a million agents."""
