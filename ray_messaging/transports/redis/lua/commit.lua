#!lua flags=allow-oom
-- Move a mailbox's cursor and trim what lies behind it, and behind the event log's where one is registered. Runs when
-- memory is full, as it frees some.
--
-- KEYS[1] state   hash: epoch, born, entry, row, keep = oldest entry that the reader needs, messages, bytes, handled and
--                 handled_bytes (under this epoch), logged = oldest entry that the event log needs (none: no log)
-- ARGV[1] the reader's epoch  [2] entry  [3] row  [4] oldest entry to keep  [5] messages and [6] bytes handled
--         under this epoch so far: totals, so that a repeated commit counts nothing twice
-- ARGV[7] key of the mailbox's stream, but for :<born>
-- Returns 1, or 0 where a newer reader holds the mailbox
local state = redis.call('HMGET', KEYS[1], 'epoch', 'handled', 'handled_bytes', 'born', 'logged')
if state[1] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'entry', ARGV[2], 'row', ARGV[3], 'keep', ARGV[4], 'handled', ARGV[5],
           'handled_bytes', ARGV[6])
redis.call('HINCRBY', KEYS[1], 'messages', tonumber(state[2] or 0) - tonumber(ARGV[5]))
redis.call('HINCRBY', KEYS[1], 'bytes', tonumber(state[3] or 0) - tonumber(ARGV[6]))
redis.call('XTRIM', ARGV[7] .. ':' .. state[4], 'MINID', state[5] and lower(ARGV[4], state[5]) or ARGV[4])
return 1
