"""The patience of tests."""

WAIT_S = 60.0  # a busy machine may take half of it for what takes a second here
AT_ONCE_S = 20.0  # for what must not wait until a timeout of the product, 30 s and more, has passed
