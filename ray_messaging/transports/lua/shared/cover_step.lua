-- Shared by close_step.lua and commit_step.lua: close a step, as close_step.lua says.
--
-- closing: rows, counts, how, state, go_on = ARGV[5] to [9] of close_step.lua

-- Keep the state of before a step, which is being closed, where agents have left the group from this step on.
local function keep_left_state(prefix, key, step, parting)
  local sealed, kept = tonumber(redis.call('HGET', prefix .. 'steps', 'sealed')), {}
  for each in parting:gmatch('%d+') do
    if tonumber(each) <= sealed then
      redis.call('HDEL', key .. ':left', each)  -- all have read it
    else
      kept[#kept + 1] = each
      if tonumber(each) == step then
        local state = redis.call('HGET', key, 'state')
        redis.call('HSET', key .. ':left', each, state and '+' .. state or '-')
      end
    end
  end
  if #kept > 0 then redis.call('HSET', key, 'parting', table.concat(kept, ',')) else redis.call('HDEL', key, 'parting') end
end

local function cover_step(prefix, group, attempt, named, closing)
  local step, record, key = tonumber(named), prefix .. 'steps:' .. named, prefix .. 'step:' .. group
  local now = redis.call('HMGET', key, 'attempt', 'closed', 'open', 'until', 'ahead', 'beat', 'parting')
  local steps = redis.call('HMGET', prefix .. 'steps', 'opened', 'asked', 'wait_for', 'news')
  local go_on = closing.go_on == '1' and group ~= SUPERVISOR and not (now[4] and step + 1 >= tonumber(now[4]))

  local function following()
    local sealed = tonumber(redis.call('HGET', prefix .. 'steps', 'sealed'))
    return {1, sealed, closing.go_on == '1' and open_step(prefix, group, attempt, step + 1) or false}
  end

  local has = has_group(now[1], attempt)
  if has == 1 and tonumber(now[2]) >= step then return following() end
  if has ~= 1 then
    if redis.call('HGET', record, 'k:' .. group) == attempt then return following() end
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
  if rows ~= tonumber(closing.rows) or #deaf > 2 then return deaf end

  for _, box in ipairs(boxes) do
    redis.call('HSET', prefix .. 'cover:' .. box[1], 'c:' .. named .. ':' .. group,
               string.format('%s:%.0f', attempt, box[2]))
  end
  if now[7] then keep_left_state(prefix, key, step, now[7]) end
  redis.call('HSET', record, 'k:' .. group, attempt, 'n:' .. group, closing.counts)
  local fields = {'closed', named, 'changed', milliseconds(), 'beat', (now[6] or 0) + 1}
  if go_on then fields[7], fields[8] = 'open', step + 1 else redis.call('HDEL', key, 'open') end
  if closing.how == '+' then fields[#fields + 1], fields[#fields + 2] = 'state', closing.state end
  if closing.how == '-' then redis.call('HDEL', key, 'state') end
  redis.call('HSET', key, unpack(fields))
  redis.call('UNLINK', key .. ':sent', key .. ':results')
  if go_on and tonumber(steps[2]) <= step then redis.call('HSET', prefix .. 'steps', 'asked', step + 1) end
  if now[4] and step + 1 >= tonumber(now[4]) then
    redis.call('ZREM', prefix .. 'steps:closed', group)
  else
    redis.call('ZADD', prefix .. 'steps:closed', step, group)
  end
  -- Most groups wait for others after a close, and need not know for which.
  local sealed = seal(prefix)
  if go_on and steps[3] == 'all' and sealed < step then return {1, sealed, waiting('groups', steps[4], {})} end
  return following()
end
