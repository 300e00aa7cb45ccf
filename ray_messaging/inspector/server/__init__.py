"""The web server of the inspector: its access, and how its pages get their values."""
