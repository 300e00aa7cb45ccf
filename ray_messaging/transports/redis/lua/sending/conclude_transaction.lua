#!lua flags=allow-oom
-- Conclude a transaction that sends nothing, as send.lua does, which comes before this. Runs when memory is full, as
-- commits do: it frees some.
