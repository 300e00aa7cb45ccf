#!lua flags=allow-oom
-- Once per connection, before any write: the first caller after a restart of the server raises the entry ids of all
-- streams above those that the former run gave out. Allowed when memory is full.
--
-- KEYS[1] meta     hash: see id_ceiling.lua; log = 1 while an event log is registered; format and
--                  shards: see claim_experiment.lua
-- KEYS[2] changes  hash: its fields are the mailboxes
-- ARGV[1] prefix of this experiment's keys: mailbox:<mailbox>:<born> is a stream, state:<mailbox> a hash (born)
-- ARGV[2] the life that the caller knew ("": none)  [3] ms that its clock shows by now at most, as far as the caller knows
-- ARGV[4...] of streams that are read over this connection: key, last entry that was read
-- Returns {life, ms, format (0: none), shards (0: none), keys of streams the end of which lay before what was
-- read...}
local now, life = milliseconds(), life_of_server()
local meta = redis.call('HMGET', KEYS[1], 'life', 'ceiling', 'log', 'format', 'shards')
local reply = {life, now, tonumber(meta[4] or 0), tonumber(meta[5] or 0)}
if not meta[2] then return reply end  -- nobody has listened yet

-- An entry that comes and goes leaves its id behind, also where there was no stream.
local function raise(stream, ms)
  local id = string.format('%.0f-0', ms)
  local raised = redis.pcall('XADD', stream, id, 'f', '')
  if type(raised) == 'string' then
    redis.call('XDEL', stream, id)
  elseif not raised.err:find('equal or smaller', 1, true) then
    error(raised.err)
  end
end

if meta[1] ~= life then
  -- Who knew the last life knows what its clock would show; else what was written ahead must do.
  local above = math.max(now, tonumber(meta[1] == ARGV[2] and ARGV[3] or meta[2]))
  for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
    local born = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'born')
    if born then raise(ARGV[1] .. 'mailbox:' .. name .. ':' .. born, above) end
  end
  if meta[3] then raise(ARGV[1] .. 'mailbox::log:0', above) end
  redis.call('HSET', KEYS[1], 'life', life, 'ceiling', string.format('%.0f', math.max(above + 1, tonumber(meta[2]))))
end

-- It lost more than the ceiling was ahead of: what comes from now on is handed out at least.
for arg = 4, #ARGV, 2 do
  local facts = redis.pcall('XINFO', 'STREAM', ARGV[arg])
  for at = 1, facts.err and 0 or #facts, 2 do
    local read = ARGV[arg + 1]
    if facts[at] == 'last-generated-id' and facts[at + 1] ~= read and lower(facts[at + 1], read) ~= read then
      raise(ARGV[arg], tonumber(read:match('^%d+')) + 1)
      reply[#reply + 1] = ARGV[arg]
    end
  end
end
return reply
