"""The web server of the inspector: who may open its pages, and how the pages get their values."""
