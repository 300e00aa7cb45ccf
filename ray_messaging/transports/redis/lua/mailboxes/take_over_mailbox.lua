#!lua flags=allow-oom
-- Take a mailbox over as take_mailbox.lua does, which comes before this. Runs when memory is full, as whoever comes back reads,
-- and frees some: a take-over changes a few numbers only.
