#!lua flags=allow-oom
-- Move a mailbox's cursor. Allowed when memory is full, because it frees some.
--
-- KEYS[1] state   hash: epoch, born, entry, row, keep = oldest entry that the reader needs, messages, bytes, handled and
--                 handled_bytes (under this epoch), logged = oldest entry that the event log needs (none: no log),
--                 acked, acked_messages = what is acknowledged behind the cursor (see move_cursor.lua; none: nothing)
-- ARGV[1] the reader's epoch  [2] entry  [3] row  [4] oldest entry to keep  [5] messages and [6] bytes handled
--         under this epoch so far: totals
-- ARGV[7] key of the mailbox's stream, but for :<born>  [8] what is acknowledged behind the cursor ("": nothing any
--         more), and [9] how many messages; left out: it stays as it is
-- Returns 1; 0 where a newer reader holds the mailbox; -1 where it is gone, or was restored as it was before our epoch
local state = reader(KEYS[1])
local epoch = state[1]
if epoch ~= ARGV[1] then return epoch and tonumber(epoch) > tonumber(ARGV[1]) and 0 or -1 end
move(KEYS[1], state, ARGV[7], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[8], ARGV[9])
return 1
