#!lua flags=allow-oom
-- Remove the event log: from then on only readers hold entries back.
--
-- KEYS[1] meta       hash: log, directory = version
-- KEYS[2] changes    hash: its fields are the mailboxes
-- KEYS[3] log state  hash: epoch of the log's writer; it stays, so that the call can be repeated
-- KEYS[4] ended      set: <name>:<born> of streams whose mailbox is gone: ended:<name>:<born> is such a stream
-- KEYS[5] log        stream: emptied rather than deleted, so that no entry id comes again
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: mailbox:<name>:<born> is a stream, state:<mailbox> a
--         hash (born, keep = oldest entry that the reader needs, and what the log counted)
-- Returns 1, or 0 where a newer writer has the log
if redis.call('HGET', KEYS[3], 'epoch') ~= ARGV[1] then return 0 end
if redis.call('HDEL', KEYS[1], 'log') == 0 then return 1 end
redis.call('HINCRBY', KEYS[1], 'directory', 1)  -- senders reload, and note nothing from then on
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local state = ARGV[2] .. 'state:' .. name
  local now = redis.call('HMGET', state, 'born', 'keep')
  if now[1] then
    redis.call('HDEL', state, 'logged', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes', 'base', 'base_bytes')
    redis.call('XTRIM', ARGV[2] .. 'mailbox:' .. name .. ':' .. now[1], 'MINID', now[2])
  end
end
for _, stream in ipairs(redis.call('SMEMBERS', KEYS[4])) do redis.call('DEL', ARGV[2] .. 'ended:' .. stream) end
redis.call('DEL', KEYS[4])
redis.call('XTRIM', KEYS[5], 'MAXLEN', 0)
redis.call('HDEL', KEYS[3], 'logged', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes', 'base', 'base_bytes', 'last')
return 1
