"""The measured society: groups in a ring."""
