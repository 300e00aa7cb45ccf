-- The rules by which a step may be opened, and the effects of sealing a step.

-- shared step_is_open -------------------------------------------------------------------------------------------------
-- Return whether a step is open to a group. `asked` and `ahead` are the fields start:open and start:ahead of the group,
-- `opened` is the field of `steps`: see step_barrier.
local function is_open(step, asked, ahead, opened)
  return asked and tonumber(asked) == step and (step <= tonumber(opened) or (ahead and tonumber(ahead) == step))
end

-- shared step_barrier -------------------------------------------------------------------------------------------------
-- The rules by which a group may open a step, and the effects of a seal. `prefix` is the prefix of the experiment's keys.
-- The keys of the steps:
--
-- steps         hash: settings (JSON), wait_for (all or senders: the current mode), groups, window, horizon, lag, lag_large,
--               lag_bytes, box_rows, box_bytes: see StepSettings; series = the shape of the recorded series (see Closing),
--               collected_bytes = bytes in steps:collected, collected_born: see RedisSteps; start:kept@<step> = bytes of
--               the boxes for a step, once they are final and there are holds, start:kept = sum of all start:kept@<step>;
--               sealed = last step that all groups have closed, latest = last step that some group has opened,
--               start:target = last step that may be opened (missing: no end), dropped = last step whose boxes were
--               deleted, joined = how many groups have joined, start:news = id of the last entry of stream start:news,
--               asked = last step that some group has asked for, opened = last step that is open to all groups that ask
--               for it, opened_ms = since when it is open, start:answering = last step with boxes of answers for
--               mailboxes outside of the steps
-- steps:hears   hash: group -> groups that may send to it (missing: all groups), as a list, ascending by step and with ;
--               between: <first step read>:<names with commas, or * for all>
-- steps:closed  sorted set: group -> last step that it has closed; only groups that take part in the steps
-- start:holds   hash: name of a hold -> last step whose boxes it has handled; for the hold CHECKPOINT: the last step before
--               the next checkpoint
-- start:news    stream: an entry wakes all groups that wait: e = the event, o = field `opened`, b = how many boxes there
--               are for that step, d = version of the directory, r = 1: rules have blocked messages of the previous step
-- start:openings  stream: the entries of start:news by which steps were opened for groups that had not asked for them, see
--               open_for_groups. Other news do not end the wait for these
-- steps:collected  stream of the series and calls of groups, until the event log has them; it has at most one entry of each
--               kind for each step of a group: k = kind (series, calls), s = step, g = group, d = data
-- steps:<step>  hash: k:<group> = attempt that closed the step, n:<group> = the group's counts, start:outside = rows from
--               outside of the steps
-- steps:<step>:blocked  hash: group -> its messages that rules blocked in the step; deleted when the next step is sealed
-- step:<group>  hash: since = first step in which the group takes part, until = first step in which it no longer does so
--               (missing: it stays), closed = last step that it has closed, start:open = step that its driver has asked for
--               (missing: none), start:ahead = step that is open to this group before it is open to all, attempt,
--               start:task and start:starts = its driver ("" and 0, or missing: no driver), lease_ms, beat = a number that
--               rises with each call of the driver, changed = ms of the last change, start:heard = ms at which its driver
--               renewed its lease last, start:results = last step, after the open one, for which results of calls may be kept
--               (missing: none), state, parting = steps from which agents have left the group, with commas (see
--               step:<group>:left), ending = 1: `until` was set because the driver will leave then
--               The group :rules is the supervisor: it closes a step after all other groups, has no mailbox, and is not in
--               lists of groups.
-- start:sent:<group>  hash for the open step: s:<sender>@<box> = last frame number, r:<box> = <rows>:<bytes>
-- step:<group>:left  hash: for each step in `parting`, "+" and the group's state after the previous step. The state is
--               written when the group closes the step; until then the value is "", and `state` has it
-- start:results:<group>  hash for the open step, for all its attempts, and for later steps: <step>:<name of a call> = the
--               call's result
local SUPERVISOR, CHECKPOINT = ':rules', 'a checkpoint'

-- Return 1 if rules have blocked messages of a step, else 0.
local function has_blocked(prefix, step)
  return redis.call('EXISTS', string.format('%ssteps:%.0f:blocked', prefix, step))
end

local function tell(prefix, what)
  local opened = redis.call('HGET', prefix .. 'steps', 'opened')
  local boxes = redis.call('SCARD', prefix .. 'boxes@' .. opened)
  local directory = redis.call('HGET', prefix .. 'meta', 'directory') or 0
  local news = redis.call('XADD', prefix .. 'start:news', 'MAXLEN', '~', 100, '*', 'e', what, 'o', opened, 'b', boxes,
                          'd', directory, 'r', has_blocked(prefix, opened - 1))
  redis.call('HSET', prefix .. 'steps', 'start:news', news)
  return news
end

-- Delete the boxes of steps that are sealed and that all holds have handled.
local function drop_boxes(prefix)
  local now = redis.call('HMGET', prefix .. 'steps', 'dropped', 'sealed')
  local last = tonumber(now[2])
  for _, through in ipairs(redis.call('HVALS', prefix .. 'start:holds')) do last = math.min(last, tonumber(through)) end
  for step = tonumber(now[1]) + 1, last do
    local names = string.format('%sboxes@%.0f', prefix, step)
    for _, name in ipairs(redis.call('SMEMBERS', names)) do
      redis.call('UNLINK', prefix .. 'box:' .. name, prefix .. 'box-cover:' .. name)
    end
    redis.call('UNLINK', names)
    local kept = redis.call('HGET', prefix .. 'steps', string.format('start:kept@%.0f', step))
    if kept then
      redis.call('HINCRBY', prefix .. 'steps', 'start:kept', 0 - tonumber(kept)) -- Redis refuses -0
      redis.call('HDEL', prefix .. 'steps', string.format('start:kept@%.0f', step))
    end
    redis.call('HSET', prefix .. 'steps', 'dropped', step)
  end
end

-- Record how many bytes the boxes for a step have, while holds keep boxes. The boxes get no further frames.
local function count_kept(prefix, step)
  if redis.call('EXISTS', prefix .. 'start:holds') == 0 then return end
  local bytes = 0
  for _, name in ipairs(redis.call('SMEMBERS', string.format('%sboxes@%.0f', prefix, step))) do
    bytes = bytes + tonumber(redis.call('HGET', prefix .. 'box-cover:' .. name, 'bytes') or 0)
  end
  redis.call('HSET', prefix .. 'steps', string.format('start:kept@%.0f', step), bytes)
  redis.call('HINCRBY', prefix .. 'steps', 'start:kept', bytes)
end

-- Call `visit` with the fields and the rows of each valid entry of a box, in order. An entry is valid if it is from outside
-- of the steps, or the attempt that wrote it has closed its step.
local function visit_counted(prefix, box, visit)
  local cover, counts, from = redis.call('HGETALL', prefix .. 'box-cover:' .. box), {}, '-'
  for i = 1, #cover, 2 do
    local sent, group = cover[i]:match('^c:(%-?%d+):(.*)$')
    if group then counts[sent .. ':' .. cover[i + 1]:match('^%d+') .. ':' .. group] = true end
  end
  while from and next(counts) do
    local entries = redis.call('XRANGE', prefix .. 'box:' .. box, from, '+', 'COUNT', 16)
    for _, entry in ipairs(entries) do
      local fields, tag = entry[2], ''
      for i = 1, #fields, 2 do
        if fields[i] == 't' then tag = fields[i + 1] end
      end
      local sent, attempt, rows, group = tag:match('^(%-?%d+):(%d+):(%d+):%d+:(.*)$')
      if sent and counts[sent .. ':' .. attempt .. ':' .. group] then visit(fields, tonumber(rows)) end
    end
    from = #entries == 16 and '(' .. entries[16][1] or nil
  end
end

-- Publish the messages that groups sent in a step to channels without a mailbox, once, between brackets as in send. Only
-- messages of attempts that have closed the step are published.
local function publish_step(prefix, step)
  local begun = false
  visit_counted(prefix, string.format(':out@%.0f', step + 1), function(fields)
    if not begun then redis.pcall('PUBLISH', prefix .. 'own@DB', '(') end
    begun = true
    for i = 1, #fields, 2 do
      if fields[i] == 'c' then redis.pcall('PUBLISH', channel_here(prefix, fields[i + 1]), fields[i + 3]) end
    end
  end)
  if begun then redis.pcall('PUBLISH', prefix .. 'own@DB', ')') end
end

-- Write the valid frames of a box of answers to the asker's mailbox, which is outside of the steps.
local function deliver_answers(prefix, box, mailbox)
  local state = prefix .. 'state:' .. mailbox
  local now = redis.call('HMGET', state, 'born', 'leased', 'logged')
  if not now[1] or (now[2] == '1' and redis.call('EXISTS', prefix .. 'start:lease:' .. mailbox) == 0) then return end
  local stream, last, messages, bytes = prefix .. 'mailbox:' .. mailbox .. ':' .. now[1], nil, 0, 0
  visit_counted(prefix, box, function(fields, rows)
    local frame
    for i = 1, #fields, 2 do
      if fields[i] == 'f' then frame = fields[i + 1] end
    end
    last, messages, bytes = redis.call('XADD', stream, '*', 'f', frame), messages + rows, bytes + #frame
  end)
  if not last then return end
  redis.call('HSET', state, 'last', last)
  for field, more in pairs({messages = messages, bytes = bytes}) do
    redis.call('HINCRBY', state, field, more)
    if now[3] then redis.call('HINCRBY', state, field == 'bytes' and 'unlogged_bytes' or 'unlogged', more) end
  end
end

-- Return an answer of open_step: the step must wait for `total` groups or holds, of which at most 16 are named.
local function waiting(reason, news, names, total)
  local answer = {2, reason, total or #names, news or '0-0'}
  for i = 1, math.min(#names, 16) do answer[#answer + 1] = names[i] end
  return answer
end

-- Return an answer of open_step if something keeps all groups from opening a step, otherwise nil.
local function shut(step, news, target, groups, joined)
  if step == 0 and tonumber(joined or 0) < tonumber(groups) then
    return waiting('missing', news, {}, tonumber(groups) - tonumber(joined or 0))
  end
  if target and step > tonumber(target) then return waiting('paused', news, {}) end
  return nil
end

-- Return the holds that are too many steps behind for a step to open. Fewer steps are allowed if the kept boxes are large.
local function late_holds(prefix, step)
  local holds, late = redis.call('HGETALL', prefix .. 'start:holds'), {}
  if #holds == 0 then return late end
  local now = redis.call('HMGET', prefix .. 'steps', 'lag', 'lag_large', 'lag_bytes', 'start:kept', 'collected_bytes')
  local lag = tonumber(now[1])
  if tonumber(now[4] or 0) + tonumber(now[5] or 0) > tonumber(now[3]) then lag = math.min(lag, tonumber(now[2])) end
  for i = 1, #holds, 2 do
    if step - tonumber(holds[i + 1]) > (holds[i] == CHECKPOINT and 0 or lag) then late[#late + 1] = holds[i] end
  end
  return late
end

-- Open the step after the last sealed step to all groups that ask for it, if some group has asked and nothing prevents it.
local function release(prefix)
  local now = redis.call('HMGET', prefix .. 'steps', 'sealed', 'opened', 'asked', 'latest', 'start:target', 'groups', 'joined')
  local step = tonumber(now[1]) + 1
  if tonumber(now[2]) >= step or tonumber(now[3]) < step or shut(step, nil, now[5], now[6], now[7]) then return end
  if #late_holds(prefix, step) > 0 then return end
  redis.call('HSET', prefix .. 'steps', 'opened', step, 'opened_ms', milliseconds(),
             'latest', math.max(step, tonumber(now[4])))
end

-- Seal the steps that all groups have closed by now.
local function seal(prefix)
  local lowest = redis.call('ZRANGE', prefix .. 'steps:closed', 0, 1, 'WITHSCORES')
  local now = redis.call('HMGET', prefix .. 'steps', 'sealed', 'horizon', 'latest', 'wait_for', 'start:answering')
  local before, sealed = tonumber(now[1]), tonumber(lowest[2] or now[3])
  if sealed > before then
    redis.call('HSET', prefix .. 'steps', 'sealed', sealed)
    for step = before + 1, sealed do
      publish_step(prefix, step)
      if now[5] and step < tonumber(now[5]) then
        for _, box in ipairs(redis.call('SMEMBERS', string.format('%sboxes@%.0f', prefix, step + 1))) do
          local mailbox = box:match('^%+(.*)@%d+$')
          if mailbox then deliver_answers(prefix, box, mailbox) end
        end
      end
      count_kept(prefix, step + 1)
      redis.call('UNLINK', string.format('%ssteps:%.0f', prefix, step - 1 - tonumber(now[2])),
                 string.format('%ssteps:%.0f:blocked', prefix, step - 1))
    end
    drop_boxes(prefix)
    release(prefix)
    tell(prefix, 'sealed')
  elseif now[4] == 'senders' or (lowest[1] == SUPERVISOR and tonumber(lowest[4] or now[3]) > before) then
    tell(prefix, 'closed')  -- the supervisor is the only one that the step waits for
  end
  return sealed > before and sealed or before
end

-- Give up a group's open step: the frames that its attempt has sent are never read, and take no room in boxes any more.
local function abandon(prefix, group)
  local key = prefix .. 'step:' .. group
  redis.call('HDEL', key, 'start:open', 'start:ahead')
  local sent = redis.call('HGETALL', prefix .. 'start:sent:' .. group)
  for i = 1, #sent, 2 do
    local box, rows, bytes = sent[i]:match('^r:(.*)$'), sent[i + 1]:match('^(%d+):(%d+)$')
    if box and redis.call('EXISTS', prefix .. 'box-cover:' .. box) == 1 then
      redis.call('HINCRBY', prefix .. 'box-cover:' .. box, 'rows', 0 - tonumber(rows))
      redis.call('HINCRBY', prefix .. 'box-cover:' .. box, 'bytes', 0 - tonumber(bytes))
    end
  end
  redis.call('UNLINK', prefix .. 'start:sent:' .. group)
end

-- Return 1 if the driver with attempt `mine` has the group, 0 if a later driver has it, -1 if the server knows neither.
local function has_group(attempt, mine)
  if attempt == mine then return 1 end
  return attempt and tonumber(attempt) > tonumber(mine) and 0 or -1
end

-- Return an answer of open_step: a step must wait for the groups whose last closed step is `step` or earlier.
local function behind(prefix, step, reason, news)
  local set = prefix .. 'steps:closed'
  local names = redis.call('ZRANGEBYSCORE', set, '-inf', step, 'LIMIT', 0, 16)
  return waiting(reason, news, names, redis.call('ZCOUNT', set, '-inf', step))
end

-- Return an answer of open_step if the supervisor must wait for a step, otherwise nil. The supervisor opens a step when all
-- groups have closed it.
local function unfinished(prefix, step)
  local now = redis.call('HMGET', prefix .. 'steps', 'start:news', 'latest')
  local late = redis.call('ZRANGEBYSCORE', prefix .. 'steps:closed', '-inf', step - 1, 'LIMIT', 0, 17)
  local names = {}
  for _, name in ipairs(late) do
    if name ~= SUPERVISOR then names[#names + 1] = name end
  end
  if #names > 0 or step > tonumber(now[2]) then return waiting('groups', now[1], names) end
  return nil
end

-- Return the groups that a group hears in a step, with commas between, or nil if it hears all groups.
local function heard(prefix, group, step)
  local found = '*'
  for from, names in (redis.call('HGET', prefix .. 'steps:hears', group) or ''):gmatch('(%d+):([^;]*)') do
    if tonumber(from) <= step then found = names end
  end
  return found ~= '*' and found or nil
end

-- Return an answer of open_step if something prevents a group from opening a step, otherwise nil.
local function obstacle(prefix, group, step)
  local now = redis.call('HMGET', prefix .. 'steps', 'sealed', 'start:target', 'start:news', 'wait_for', 'window', 'groups', 'joined')
  local sealed, news = tonumber(now[1]), now[3]
  local all = shut(step, news, now[2], now[6], now[7])
  if all then return all end
  local hears = now[4] == 'senders' and heard(prefix, group, step)
  if hears then
    local late = {}
    for name in hears:gmatch('[^,]+') do
      local closed = redis.call('ZSCORE', prefix .. 'steps:closed', name)
      if closed and tonumber(closed) < step - 1 then late[#late + 1] = name end
    end
    if #late > 0 then return waiting('groups', news, late) end
  elseif sealed < step - 1 then
    return behind(prefix, step - 2, 'groups', news)
  end
  if step > sealed + tonumber(now[5]) then return behind(prefix, step - tonumber(now[5]) - 1, 'window', news) end
  local late = late_holds(prefix, step)
  if #late > 0 then return waiting('hold', news, late) end
  return nil
end

-- Open a step. Returns {1, directory version, 1 if rules have blocked messages of the previous step, news, then group, step
-- sent, attempt, rows of each cover of the group's box}; {0} a later driver has the group; {-1} the server knows neither
-- driver; {2, reason, how many, news, names...} the group must wait; {3, closed} the step is closed already, or the group
-- has left the steps; {4, closed} the step is later than the group's next step. `closed` is the last closed step.
local function open_step(prefix, group, attempt, step)
  local key = prefix .. 'step:' .. group
  local now = redis.call('HMGET', key, 'attempt', 'closed', 'start:open', 'until', 'start:ahead', 'beat')
  local has = has_group(now[1], attempt)
  if has ~= 1 then return {has} end
  local closed = tonumber(now[2])
  if step <= closed or (now[4] and step >= tonumber(now[4])) then return {3, closed} end
  if step > closed + 1 then return {4, closed} end
  local steps = redis.call('HMGET', prefix .. 'steps', 'opened', 'sealed', 'latest', 'asked')
  local fields, against = {'beat', (now[6] or 0) + 1}, nil
  if group == SUPERVISOR then
    if now[3] ~= string.format('%.0f', step) then
      against = unfinished(prefix, step)
      if not against then fields = {'beat', fields[2], 'start:open', step, 'start:ahead', step, 'changed', milliseconds()} end
    end
  elseif not is_open(step, now[3], now[5], steps[1]) then
    fields[3], fields[4] = 'start:open', step
    if step > tonumber(steps[4]) then redis.call('HSET', prefix .. 'steps', 'asked', step) end
    against = step > tonumber(steps[1]) and obstacle(prefix, group, step)
    if not against then
      fields[5], fields[6] = 'changed', milliseconds()
      if step > tonumber(steps[2]) + 1 then
        fields[7], fields[8] = 'start:ahead', step
        redis.call('HSET', prefix .. 'steps', 'latest', math.max(step, tonumber(steps[3])))
      elseif step > tonumber(steps[1]) then
        release(prefix)
      end
    end
  end
  redis.call('HSET', key, unpack(fields))
  if against then return against end
  local cover, answer = redis.call('HGETALL', string.format('%sbox-cover:%s@%.0f', prefix, group, step)), {1}
  answer[2] = tonumber(redis.call('HGET', prefix .. 'meta', 'directory') or 0)
  answer[3] = has_blocked(prefix, step - 1)
  answer[4] = redis.call('HGET', prefix .. 'steps', 'start:news') or '0-0'
  for i = 1, #cover, 2 do
    local sent, from = cover[i]:match('^c:(-?%d+):(.*)$')
    if sent then
      local by, rows = cover[i + 1]:match('^(%d+):(%d+)$')
      for _, value in ipairs({from, sent, by, rows}) do answer[#answer + 1] = value end
    end
  end
  return answer
end

-- shared cover_step ---------------------------------------------------------------------------------------------------
-- Close a step, as script close_step describes.
--
-- closing: rows, counts, how, state, go_on, series, blocked, calls = ARGV[5] to [12] of close_step. If the frames were
--          written in the same call, also: now = the result of driver_of, sent = fields and values of start:sent:<group>,
--          which were not written there, sizes = for each box the fields `rows` and `bytes` for its cover
local function closing_of(at)
  return {rows = ARGV[at], counts = ARGV[at + 1], how = ARGV[at + 2], state = ARGV[at + 3], go_on = ARGV[at + 4],
          series = ARGV[at + 5], blocked = ARGV[at + 6], calls = ARGV[at + 7]}
end

local function driver_of(key)
  return redis.call('HMGET', key, 'attempt', 'closed', 'start:open', 'until', 'start:ahead', 'beat', 'parting',
                    'start:results')
end

-- Delete the results of remembered calls of a step that a group closes, and of earlier steps. `last` is the last step after
-- the open one for which results may be kept, or false.
local function drop_results(prefix, group, step, last)
  local key, closed = prefix .. 'start:results:' .. group, {}
  if not last or tonumber(last) <= step then return redis.call('UNLINK', key) end
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if tonumber(name:match('^%d+')) <= step then closed[#closed + 1] = name end
  end
  for low = 1, #closed, 1000 do redis.call('HDEL', key, unpack(closed, low, math.min(low + 999, #closed))) end
end

-- If agents have left the group from `step` on, keep the group's state after the previous step, because the group that got
-- the agents may still read it. The group is closing `step` now, so its state is about to change.
local function keep_left_state(prefix, key, step, parting)
  local sealed, kept = tonumber(redis.call('HGET', prefix .. 'steps', 'sealed')), {}
  for each in parting:gmatch('%d+') do
    if tonumber(each) <= sealed then
      redis.call('HDEL', key .. ':left', each)  -- all groups that need this state have read it
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
  local now = closing.now or driver_of(key)
  local steps = redis.call('HMGET', prefix .. 'steps', 'opened', 'asked', 'wait_for', 'start:news')
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

  -- First decide whether the step can be closed. Then write.
  local sent, boxes, rows = closing.sent or redis.call('HGETALL', prefix .. 'start:sent:' .. group), {}, 0
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
  local shape = closing.series:match('^[^\n]*')
  local known = shape ~= '' and redis.call('HGET', prefix .. 'steps', 'series')
  if known and known ~= shape then return {5, known} end

  for _, box in ipairs(boxes) do
    redis.call('HSET', prefix .. 'box-cover:' .. box[1], 'c:' .. named .. ':' .. group,
               string.format('%s:%.0f', attempt, box[2]), unpack(closing.sizes and closing.sizes[box[1]] or {}))
  end
  if now[7] then keep_left_state(prefix, key, step, now[7]) end
  redis.call('HSET', record, 'k:' .. group, attempt, 'n:' .. group, closing.counts)
  if closing.blocked ~= '' then redis.call('HSET', record .. ':blocked', group, closing.blocked) end
  local fields = {'closed', named, 'changed', milliseconds(), 'beat', (now[6] or 0) + 1}
  if go_on then fields[7], fields[8] = 'start:open', step + 1 else redis.call('HDEL', key, 'start:open') end
  if closing.how == '+' then fields[#fields + 1], fields[#fields + 2] = 'state', closing.state end
  if closing.how == '-' then redis.call('HDEL', key, 'state') end
  redis.call('HSET', key, unpack(fields))
  if shape ~= '' then redis.call('HSET', prefix .. 'steps', 'series', shape) end
  for _, kind in ipairs({'series', 'calls'}) do
    if closing[kind] ~= '' then
      redis.call('HINCRBY', prefix .. 'steps', 'collected_bytes', #closing[kind])
      redis.call('XADD', prefix .. 'steps:collected', '*', 'k', kind, 's', named, 'g', group, 'd', closing[kind])
    end
  end
  redis.call('UNLINK', prefix .. 'start:sent:' .. group)
  drop_results(prefix, group, step, now[8])
  if go_on and tonumber(steps[2]) <= step then redis.call('HSET', prefix .. 'steps', 'asked', step + 1) end
  if now[4] and step + 1 >= tonumber(now[4]) then
    redis.call('ZREM', prefix .. 'steps:closed', group)
  else
    redis.call('ZADD', prefix .. 'steps:closed', step, group)
  end
  -- Most groups must wait for other groups after a close. Their answer names no groups, because that would take time.
  local sealed = seal(prefix)
  if go_on and steps[3] == 'all' and sealed < step then return {1, sealed, waiting('groups', steps[4], {})} end
  return following()
end
