#!lua flags=allow-oom
-- Conclude a transaction that sends nothing: send.lua comes before this. Allowed when memory is full, as commits are,
-- because it frees some.
