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
local prefix, group, step = ARGV[1], ARGV[2], tonumber(ARGV[4])
local record, key = prefix .. 'steps:' .. ARGV[4], KEYS[2]
local now = redis.call('HMGET', key, 'attempt', 'closed', 'open', 'until', 'ahead', 'beat')
local steps = redis.call('HMGET', KEYS[1], 'opened', 'asked', 'wait_for', 'news')
local go_on = ARGV[9] == '1' and group ~= SUPERVISOR and not (now[4] and step + 1 >= tonumber(now[4]))

local function following()
  local sealed = tonumber(redis.call('HGET', KEYS[1], 'sealed'))
  return {1, sealed, ARGV[9] == '1' and open_step(prefix, group, ARGV[3], step + 1) or false}
end

local has = has_group(now[1], ARGV[3])
if has == 1 and tonumber(now[2]) >= step then return following() end
if has ~= 1 then
  if redis.call('HGET', record, 'k:' .. group) == ARGV[3] then return following() end
  return {has}
end
if not is_open(step, now[3], now[5], steps[1]) then return {3, tonumber(now[2]), now[4]} end

-- First it is decided, then written.
local sent, boxes, rows = redis.call('HGETALL', key .. ':sent'), {}, 0
local checks, deaf, known = steps[3] == 'senders', {2, 0}, {[group] = true}
for i = 1, #sent, 2 do
  local box = sent[i]:match('^r:(.*)$')
  if box then
    local count, mailbox, read = tonumber(sent[i + 1]:match('^%d+')), box:match('^(.*)@(%d+)$')
    boxes[#boxes + 1] = {box, count}
    if mailbox:sub(1, 1) ~= ':' then
      rows = rows + count
      local hears = checks and not known[mailbox] and heard(prefix, mailbox, tonumber(read))
      if hears and not (',' .. hears .. ','):find(',' .. group .. ',', 1, true) then
        deaf[#deaf + 1], known[mailbox] = mailbox, true
      end
    end
  end
end
deaf[2] = rows
if rows ~= tonumber(ARGV[5]) or #deaf > 2 then return deaf end

for _, box in ipairs(boxes) do
  redis.call('HSET', prefix .. 'cover:' .. box[1], 'c:' .. ARGV[4] .. ':' .. group,
             string.format('%s:%.0f', ARGV[3], box[2]))
end
redis.call('HSET', record, 'k:' .. group, ARGV[3], 'n:' .. group, ARGV[6])
local fields = {'closed', ARGV[4], 'changed', milliseconds(), 'beat', (now[6] or 0) + 1}
if go_on then fields[7], fields[8] = 'open', step + 1 else redis.call('HDEL', key, 'open') end
if ARGV[7] == '+' then fields[#fields + 1], fields[#fields + 2] = 'state', ARGV[8] end
if ARGV[7] == '-' then redis.call('HDEL', key, 'state') end
redis.call('HSET', key, unpack(fields))
redis.call('UNLINK', key .. ':sent', key .. ':results')
if go_on and tonumber(steps[2]) <= step then redis.call('HSET', KEYS[1], 'asked', step + 1) end
if now[4] and step + 1 >= tonumber(now[4]) then
  redis.call('ZREM', prefix .. 'steps:closed', group)
else
  redis.call('ZADD', prefix .. 'steps:closed', step, group)
end
-- Most groups wait for others after a close, and need not know for which.
local sealed = seal(prefix)
if go_on and steps[3] == 'all' and sealed < step then return {1, sealed, waiting('groups', steps[4], {})} end
return following()
