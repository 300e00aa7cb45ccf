#!lua flags=allow-oom
-- Take a mailbox over: take_mailbox.lua comes before this. Allowed when memory is full: a take-over changes a few numbers
-- only, and its reader frees some.
