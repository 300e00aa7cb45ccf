#!lua flags=no-writes,allow-stale
-- Return the state of an experiment and its mailboxes. Writes nothing.
--
-- KEYS[1] meta     hash: interceptor = epoch, log = 1 while an event log is registered
-- KEYS[2] changes  hash: its fields are the mailboxes
-- KEYS[3] dead     stream of dead letters
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash (see take_mailbox.lua), lease:<mailbox> a string (see
--         renew_lease.lua), step:<mailbox> a hash (see step_barrier.lua), mailbox:<mailbox>:<born> a stream, state::log the log stream's state, state::dead the dead letters'
-- ARGV[2] mailboxes at most  [3] bytes of frames that may be looked at: an entry's age cannot be had without its frame
-- Returns {interceptor's epoch, log, dead letters, those lost to their limit, unlogged, unlogged_bytes, max_messages, max_bytes of the log stream,
-- mailboxes in all, then for each: name, messages, bytes, max_messages, max_bytes, entry of the oldest unread message or
-- "", ms of its lease that are left by the server's clock, below 0 where none are, leased, unlogged, unlogged_bytes, 1
-- where it alone listens for agents, owner, messages that are acknowledged behind something that is not, the step in
-- which its group has joined the steps or "", the note on its service or "" (see set_service.lua),
-- messages whose handlers failed}
local meta = redis.call('HMGET', KEYS[1], 'interceptor', 'log')
local log = redis.call('HMGET', ARGV[1] .. 'state::log', 'unlogged', 'unlogged_bytes', 'max_messages', 'max_bytes')
-- Whoever else writes there may write anything.
local dropped = redis.call('HGET', ARGV[1] .. 'state::dead', 'dropped') or ''
local names = redis.call('HKEYS', KEYS[2])
local reply = {meta[1] or 0, meta[2] or 0, redis.call('XLEN', KEYS[3]),
               #dropped < 20 and dropped:find('^%d+$') and dropped or 0, log[1] or 0,
               log[2] or 0, log[3] or 0, log[4] or 0, #names}
local looked, clock = 0, redis.call('TIME')
for i = 1, math.min(#names, tonumber(ARGV[2])) do
  local name = names[i]
  local now = redis.call('HMGET', ARGV[1] .. 'state:' .. name, 'messages', 'bytes', 'max_messages', 'max_bytes', 'born',
                         'entry', 'row', 'leased', 'unlogged', 'unlogged_bytes', 'exclusive', 'owner', 'acked_messages',
                         'service', 'failures', 'epoch', 'served')
  local oldest = ''
  -- Whatever was counted: what others wrote there was not, and waits all the same.
  if now[5] and looked < tonumber(ARGV[3]) then
    local from = now[6] or '0-0'
    if (now[7] or '0') == '0' then from = '(' .. from end
    local entry = redis.call('XRANGE', ARGV[1] .. 'mailbox:' .. name .. ':' .. now[5], from, '+', 'COUNT', 1)[1]
    if entry then
      oldest = entry[1]
      for _, part in ipairs(entry[2]) do looked = looked + #part end
    end
  end
  local left = -2
  for lasts, renewed in (redis.call('GET', ARGV[1] .. 'lease:' .. name) or ''):gmatch(':(%d+):(%d+)$') do
    left = renewed + lasts - clock[1] * 1000 - math.floor(clock[2] / 1000)
  end
  for _, value in ipairs({name, now[1] or 0, now[2] or 0, now[3] or 0, now[4] or 0, oldest, left, now[8] or 0,
                          now[9] or 0, now[10] or 0, now[11] or 0, now[12] or '', now[13] or 0,
                          redis.call('HGET', ARGV[1] .. 'step:' .. name, 'since') or '',
                          now[16] == now[17] and now[14] or '', now[15] or 0}) do
    reply[#reply + 1] = value
  end
end
return reply
