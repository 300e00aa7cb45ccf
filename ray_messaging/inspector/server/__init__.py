"""The web server of the inspector: access to it, and how its pages get their values."""
