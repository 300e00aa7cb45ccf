#!lua flags=allow-oom
-- Close a step: all that its attempt has sent counts from now on. The last group to close it seals it. Allowed when memory
-- is full, because a seal frees some.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] step
-- ARGV[5] rows that it wrote to mailboxes' boxes, as acknowledged  [6] its counts  [7] what becomes of the state: = it stays,
--         + it is [8], - it goes  [9] 1: the next step is to be opened
-- Returns {1, sealed, what open_step in step_barrier.lua does}; {0} a later driver has the group; {-1} the server knows
-- neither; {2, rows, mailboxes...}: so many rows are here, and these mailboxes do not hear the group; {3, closed, until or false}: not open
local closing = {rows = ARGV[5], counts = ARGV[6], how = ARGV[7], state = ARGV[8], go_on = ARGV[9]}
return cover_step(ARGV[1], ARGV[2], ARGV[3], ARGV[4], closing)
