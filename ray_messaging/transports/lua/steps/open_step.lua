#!lua flags=allow-oom
-- Open a step. Allowed when memory is full: its close frees some.
--
-- KEYS[1] steps: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] step
-- Returns what open_step in step_barrier.lua does
return open_step(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
