"""The part of a messager that sends."""
