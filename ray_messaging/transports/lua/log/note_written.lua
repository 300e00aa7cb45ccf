#!lua flags=allow-oom
-- Record the event log's position in streams, and trim entries that neither the log nor the reader needs. Allowed when
-- memory is full, because it frees some.
--
-- KEYS[1] meta       hash: log = 1 while a log is registered
-- KEYS[2] log state  hash: epoch of the log's writer, and what any state has
-- KEYS[3] ended      set: <name>:<born> of streams whose mailbox is gone, and that the log has not read to their end:
--                    ended:<name>:<born> is such a stream
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: mailbox:<name>:<born> is a stream, state:<name> a
--         hash (born, keep = oldest entry that the reader needs, logged = oldest entry that the log needs, last = id of
--         the last entry, unlogged and unlogged_bytes = what the log does not have, taken and taken_bytes = what it took
--         under its epoch)
-- ARGV[3] number of streams, then for each: <name>:<born>, oldest entry that the log needs, messages and bytes taken
--         under this epoch so far: totals, so that a repeated call counts nothing twice
-- ARGV[...] streams that ended and were read to their end: they go
-- Returns 1, or 0 where a newer writer has the log, or none is registered
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'log') == 0 then return 0 end
local arg = 4
for _ = 1, tonumber(ARGV[3]) do
  local stream, keep, taken, taken_bytes = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
  local name, born = stream:match('^(.*):(%d+)$')
  local state = ARGV[2] .. 'state:' .. name
  local now = redis.call('HMGET', state, 'born', 'keep', 'last', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes')
  local oldest, kind = keep, 'ended:'
  if now[1] == born then
    local unlogged = tonumber(now[4] or 0) + tonumber(now[6] or 0) - taken
    local unlogged_bytes = tonumber(now[5] or 0) + tonumber(now[7] or 0) - taken_bytes
    -- A log that has all lacks nothing, whatever was counted: a writer that died after its file and before its call
    -- here took what nobody counted.
    if not now[3] or (now[3] ~= keep and lower(now[3], keep) == now[3]) then unlogged, unlogged_bytes = 0, 0 end
    redis.call('HSET', state, 'logged', keep, 'unlogged', math.max(unlogged, 0),
               'unlogged_bytes', math.max(unlogged_bytes, 0), 'taken', taken, 'taken_bytes', taken_bytes)
    kind = 'mailbox:'
    if now[2] then oldest = lower(keep, now[2]) end
  end
  redis.call('XTRIM', ARGV[2] .. kind .. stream, 'MINID', oldest)
  arg = arg + 4
end
for i = arg, #ARGV do
  if redis.call('SREM', KEYS[3], ARGV[i]) == 1 then redis.call('DEL', ARGV[2] .. 'ended:' .. ARGV[i]) end
end
return 1
