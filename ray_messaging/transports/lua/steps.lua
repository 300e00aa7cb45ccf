-- Scripts by which groups join, open and close steps.

-- script begin_steps --------------------------------------------------------------------------------------------------
-- Set up the steps of an experiment, unless that was done before.
--
-- KEYS[1] steps  hash: see step_barrier
-- ARGV[1] the settings (JSON)  [2...] field, value of each setting that the scripts use
-- Returns the settings in force
if redis.call('HSETNX', KEYS[1], 'settings', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed', -1, 'latest', -1, 'dropped', -1, 'asked', -1, 'opened', -1, unpack(ARGV, 2))
end
return redis.call('HGET', KEYS[1], 'settings')

-- script join_steps ---------------------------------------------------------------------------------------------------
-- Let a group take part in the steps. Its first step is one whose previous step no group has opened yet, so that all
-- senders of messages for that step know the group. The supervisor closes a step after all groups; its first step is the
-- open step, or the next step if none is open.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier  [3] state of its mailbox: stepped = 1 from now on
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] 1: let the group join again if it has left with its driver
-- Returns the group's first step; -1: the group is still leaving; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'settings', 'sealed')
local group = redis.call('HMGET', KEYS[2], 'since', 'until', 'closed', 'ending')
if not now[2] then return -2 end
if ARGV[2] ~= SUPERVISOR then redis.call('HSET', KEYS[3], 'stepped', 1) end
if group[1] and not group[2] then return tonumber(group[1]) end
if group[4] and ARGV[3] ~= '1' then return tonumber(group[1]) end
if group[1] and tonumber(group[3]) + 1 < tonumber(group[2]) then return -1 end
local latest = tonumber(now[1])
local since = ARGV[2] == SUPERVISOR and latest or latest < 0 and 0 or latest + 2
since = math.max(since, tonumber(now[3]) + 1)
redis.call('HSET', KEYS[2], 'since', since, 'closed', since - 1, 'changed', milliseconds())
redis.call('HDEL', KEYS[2], 'until', 'ending')
redis.call('ZADD', ARGV[1] .. 'steps:closed', since - 1, ARGV[2])
if ARGV[2] ~= SUPERVISOR then redis.call('HINCRBY', KEYS[1], 'joined', 1) end
seal(ARGV[1])  -- steps can be sealed now if all other groups too have a later first step
release(ARGV[1])  -- step 0 can be opened now if it waited for this group only
tell(ARGV[1], 'joined')
return since

-- script leave_steps --------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Let a group leave the steps. Allowed when memory is full, because other groups wait for this group.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] 1: at once, and the group's open step is given up
-- Returns the first step in which the group no longer takes part; -1: no such group has joined
local now = redis.call('HGET', KEYS[1], 'latest')
local group = redis.call('HMGET', KEYS[2], 'since', 'until', 'closed')
if not group[1] then return -1 end
local closed = tonumber(group[3])
local ends = tonumber(group[2] or math.max(tonumber(now) + 2, tonumber(group[1])))
if ARGV[3] == '1' and closed + 1 < ends then
  ends = closed + 1
  abandon(ARGV[1], ARGV[2])
  redis.call('UNLINK', ARGV[1] .. 'start:results:' .. ARGV[2])
  redis.call('HDEL', KEYS[2], 'start:results')
end
redis.call('HSET', KEYS[2], 'until', ends, 'changed', milliseconds())
redis.call('HDEL', KEYS[2], 'ending')
if closed + 1 >= ends then redis.call('ZREM', ARGV[1] .. 'steps:closed', ARGV[2]) end
seal(ARGV[1])
tell(ARGV[1], 'left')
return ends

-- script declare_senders ----------------------------------------------------------------------------------------------
-- Declare which groups may send to a group (which groups it hears), from a step on. A declaration that is in force already
-- changes nothing, and may come at any time.
--
-- KEYS[1] steps  [2] steps:hears: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] the first step whose messages the declaration is for; "": all steps
-- ARGV[3...] for each group: its name, the groups that it hears (ascending, with commas; * for all)
-- Returns -1 if it is done; the latest open step, if the declaration comes too late; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'sealed')
local latest, sealed = tonumber(now[1] or -2), tonumber(now[2])
if latest == -2 then return -2 end
local at, changed = math.max(tonumber(ARGV[2]) or 0, 0), {}
for i = 3, #ARGV, 2 do
  local group, names = ARGV[i], ARGV[i + 1]
  if (heard(ARGV[1], group, math.max(at, latest + 1)) or '*') ~= names then changed[group] = names end
end
if next(changed) == nil then return -1 end
if latest >= 0 and at < latest + 2 then return latest end
for group, names in pairs(changed) do
  local kept = {}
  for from, old in (redis.call('HGET', KEYS[2], group) or ''):gmatch('(%d+):([^;]*)') do
    if tonumber(from) < at then
      if tonumber(from) <= sealed + 1 then kept = {} end  -- steps before step `from` will not be opened again
      kept[#kept + 1] = from .. ':' .. old
    end
  end
  kept[#kept + 1] = string.format('%.0f:%s', at, names)
  redis.call('HSET', KEYS[2], group, table.concat(kept, ';'))
end
tell(ARGV[1], 'senders')
return -1

-- script set_wait_for -------------------------------------------------------------------------------------------------
-- Set which groups a group waits for, whatever the settings say, and wake the groups that wait.
--
-- KEYS[1] steps: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] all or senders
-- Returns 1; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'settings', 'wait_for')
if not now[1] then return -2 end
if now[2] ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'wait_for', ARGV[2])
  tell(ARGV[1], 'wait_for')
end
return 1

-- script take_group ---------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Make the caller the driver of a group. Allowed when memory is full, because the group's steps free memory.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's task  [4] how often it was started  [5] lease in ms
-- ARGV[6] the lease of another driver, which the caller has seen unchanged for its whole duration, or ""
-- ARGV[7] the first step in which the group no longer takes part, or "": it stays
-- Returns {1, attempt, closed, state or false, until or false}; {2, task, start, lease, ms of the lease} of another driver
-- that has the group; {0, attempt} a later start of this driver has it; {-1} no such group has joined
local now = redis.call('HMGET', KEYS[2], 'since', 'attempt', 'start:task', 'start:starts', 'beat', 'lease_ms')
if not now[1] then return {-1} end
local task, start, again = now[3] or '', tonumber(now[4] or 0), false
if task == ARGV[3] then
  if tonumber(ARGV[4]) < start then return {0, tonumber(now[2])} end
  again = tonumber(ARGV[4]) == start
elseif task ~= '' then
  local lease = now[2] .. ':' .. (now[5] or 0)
  if lease ~= ARGV[6] then return {2, task, start, lease, tonumber(now[6])} end
end
local attempt = now[2]
if not again then
  attempt = raise_number(KEYS[2], 'attempt')
  abandon(ARGV[1], ARGV[2])
  redis.call('HSET', KEYS[2], 'start:task', ARGV[3], 'start:starts', ARGV[4], 'lease_ms', ARGV[5], 'changed', milliseconds())
end
redis.call('HINCRBY', KEYS[2], 'beat', 1)
local was = redis.call('HMGET', KEYS[2], 'closed', 'until', 'ending')
if redis.call('ZSCORE', ARGV[1] .. 'steps:closed', ARGV[2]) and (not was[2] or was[3]) then
  if ARGV[7] == '' then
    redis.call('HDEL', KEYS[2], 'until', 'ending')
  elseif tonumber(ARGV[7]) > tonumber(was[1]) + 1 then
    redis.call('HSET', KEYS[2], 'until', ARGV[7], 'ending', 1)
  end
end
local left = redis.call('HMGET', KEYS[2], 'closed', 'state', 'until')
return {1, tonumber(attempt), tonumber(left[1]), left[2], left[3] and tonumber(left[3])}

-- script renew_driver -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Renew the lease of a group's driver, or give the group up. Allowed when memory is full.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] 1: renew, 0: give the group up
-- Returns 1; 0: a later driver has the group; -1: the server knows neither driver
local has = has_group(redis.call('HGET', KEYS[2], 'attempt'), ARGV[3])
if has ~= 1 then return has end
if ARGV[4] == '1' then
  redis.call('HINCRBY', KEYS[2], 'beat', 1)
  redis.call('HSET', KEYS[2], 'start:heard', milliseconds())
else
  abandon(ARGV[1], ARGV[2])
  raise_number(KEYS[2], 'attempt')  -- no driver has this number, so the driver that gave the group up is fenced
  redis.call('HSET', KEYS[2], 'start:task', '', 'start:starts', 0, 'changed', milliseconds())
end
return 1

-- script open_step ----------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Open a step. Allowed when memory is full, because the step's close frees memory.
--
-- KEYS[1] steps: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] step
-- Returns what function open_step in step_barrier returns
return open_step(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))

-- script open_for_groups ----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Open the step after the last sealed one for groups of a run, whose drivers wait until they are told to go on. So these need
-- not call open_step, and a call of open_step for the same step changes nothing. A group without a driver is left out.
-- Allowed when memory is full, because the step's close frees memory.
--
-- KEYS[1] steps: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] step  [3...] the groups; none: only return the facts
-- Returns {sealed, news}; nothing: the experiment has no steps
local now, step = redis.call('HMGET', KEYS[1], 'sealed', 'asked'), tonumber(ARGV[2])
if not now[1] then return {} end
if #ARGV > 2 and step == tonumber(now[1]) + 1 then
  for i = 3, #ARGV do
    local key = ARGV[1] .. 'step:' .. ARGV[i]
    local group = redis.call('HMGET', key, 'closed', 'until', 'start:task')
    local here = group[1] and tonumber(group[1]) == step - 1 and not (group[2] and step >= tonumber(group[2]))
    if here and group[3] and group[3] ~= '' then
      redis.call('HSET', key, 'start:open', step, 'changed', milliseconds())
    end
  end
  if step > tonumber(now[2]) then redis.call('HSET', KEYS[1], 'asked', step) end
  release(ARGV[1])
  local news = tell(ARGV[1], 'opened')
  local fields = redis.call('XRANGE', ARGV[1] .. 'start:news', news, news)[1][2]
  redis.call('XADD', ARGV[1] .. 'start:openings', 'MAXLEN', '~', 100, news, unpack(fields))
end
return {tonumber(now[1]), redis.call('HGET', KEYS[1], 'start:news') or '0-0'}

-- script remember_calls -----------------------------------------------------------------------------------------------
-- Keep results of remembered calls that a group has made for its open step or, ahead of time, for a later step, until
-- that step is closed.
--
-- KEYS[1] step:<group>  [2] start:results:<group>: see step_barrier
-- ARGV[1] the driver's attempt  [2] step  [3] how many results there are, then for each its name and its bytes
-- Returns 1; 0: a later driver has the group, or the step is closed
local now, step = redis.call('HMGET', KEYS[1], 'attempt', 'closed', 'start:results'), tonumber(ARGV[2])
if now[1] ~= ARGV[1] or step <= tonumber(now[2]) then return 0 end
if step > tonumber(now[3] or now[2] + 1) then redis.call('HSET', KEYS[1], 'start:results', step) end
for i = 4, 3 + 2 * tonumber(ARGV[3]), 2 do redis.call('HSET', KEYS[2], ARGV[2] .. ':' .. ARGV[i], ARGV[i + 1]) end
return 1

-- script close_step ---------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Close a step: from now on all messages that its attempt has sent are valid. The last group that closes the step seals it.
-- Allowed when memory is full, because a seal frees memory.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] step
-- ARGV[5] rows that the attempt wrote to mailboxes' boxes, by the replies that it got  [6] its counts  [7] change of the
--         group's state: = none, + it becomes [8], - it is deleted  [9] 1: also open the next step  [10] the group's values
--         in the recorded series, or ""  [11] its messages that rules blocked, or ""  [12] its remembered calls, or ""
-- Returns {1, sealed, what function open_step in step_barrier returns}; {0} a later driver has the group; {-1} the server
-- knows neither driver; {2, rows, mailboxes...}: the server has `rows` rows, and these mailboxes do not hear the group;
-- {3, closed, until or false}: the step is not open; {5, shape}: the run's series have another shape
return cover_step(ARGV[1], ARGV[2], ARGV[3], ARGV[4], closing_of(5))

-- script close_collecting_step ----------------------------------------------------------------------------------------
-- Close a step with series or calls, as close_step does. Not allowed when memory is full, because a seal deletes neither
-- series nor calls.
--
-- KEYS and ARGV as in close_step
-- Returns what close_step returns
return cover_step(ARGV[1], ARGV[2], ARGV[3], ARGV[4], closing_of(5))

-- script commit_step --------------------------------------------------------------------------------------------------
-- Write all frames of an open step into boxes, and close the step, in one call.
--
-- KEYS and ARGV[1] to [6] as in send_to_boxes
-- ARGV[7] to [14] as ARGV[5] to [12] of close_step
-- ARGV[...] per write as in send_to_boxes
-- Returns what close_step returns; {4}: nothing was written, and send_to_boxes says why
local closing, now = closing_of(7), driver_of(KEYS[3])
closing.now = now
if now[1] == ARGV[3] and tonumber(now[2]) < tonumber(ARGV[4]) then
  local fates = write_to_boxes(KEYS, 15, closing)
  for i = 1, #fates do
    if fates[i] ~= 0 and (i == 1 or fates[i] ~= 1) then return {4} end
  end
elseif now[1] ~= ARGV[3] and redis.call('HGET', ARGV[1] .. 'steps:' .. ARGV[4], 'k:' .. ARGV[2]) ~= ARGV[3] then
  return {4}
else
  -- An earlier call has closed the step, and its answer was lost. The next step is not opened here: that is a write, which
  -- this script, unlike open_step, may not make while memory is full.
  closing.go_on = '0'
end
local answer = cover_step(ARGV[1], ARGV[2], ARGV[3], ARGV[4], closing)
-- If the step was not closed, record the rows and bytes of the written frames, so that `abandon` can free their room in
-- boxes.
if answer[1] ~= 1 and closing.sent then
  keep_fields(KEYS[4], closing.sent)
  for name, size in pairs(closing.sizes) do redis.call('HSET', ARGV[1] .. 'box-cover:' .. name, unpack(size)) end
end
return answer

-- script drop_collected -----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Delete entries of steps:collected, which has series and calls of groups. A repeated call changes nothing.
--
-- KEYS[1] steps  [2] steps:collected: see step_barrier
-- ARGV[...] ids of the entries
-- Returns 1
for _, entry in ipairs(ARGV) do
  local found = redis.call('XRANGE', KEYS[2], entry, entry)
  if found[1] then
    for i = 1, #found[1][2], 2 do
      if found[1][2][i] == 'd' then redis.call('HINCRBY', KEYS[1], 'collected_bytes', 0 - #found[1][2][i + 1]) end
    end
    redis.call('XDEL', KEYS[2], entry)
  end
end
return 1

-- script target_steps -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Set the last step that may be opened.
--
-- KEYS[1] steps: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] the step; "": no end; "now": the latest step that some group has opened
-- Returns the step, or -1 if there is no end; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'start:target')
if not now[1] then return -2 end
local target = ARGV[2]
if target == 'now' then
  target = tonumber(now[1])
  if now[2] then target = math.min(target, tonumber(now[2])) end
end
if target == '' then redis.call('HDEL', KEYS[1], 'start:target') else redis.call('HSET', KEYS[1], 'start:target', target) end
release(ARGV[1])
tell(ARGV[1], 'target')
return target == '' and -1 or tonumber(target)

-- script read_progress ------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the progress of all groups.
--
-- KEYS[1] steps, KEYS[2] steps:closed, KEYS[3] start:holds: see step_barrier
-- ARGV[1] prefix of this experiment's keys
-- Returns {{sealed, latest, target or false, news, mode}, {hold, last step...}, then for each group {its name, closed, open or
-- false, task, start, ms since its last change, since, until or false, ms since its last sign of life}}; nothing: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'sealed', 'latest', 'start:target', 'start:news', 'wait_for')
local all = redis.call('HMGET', KEYS[1], 'opened', 'opened_ms')
if not now[1] then return {} end
local reply, clock = {now, redis.call('HGETALL', KEYS[3])}, milliseconds()
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local group = redis.call('HMGET', ARGV[1] .. 'step:' .. name, 'closed', 'start:open', 'start:task', 'start:starts', 'changed', 'since', 'until',
                           'start:ahead', 'start:heard')
  local heard = math.max(tonumber(group[5]), tonumber(group[9] or 0))
  if not is_open(tonumber(group[1]) + 1, group[2], group[8], all[1]) then
    group[2] = false
  elseif group[2] == all[1] then
    group[5] = math.max(tonumber(group[5]), tonumber(all[2]))  -- the group waited until the step was opened
  end
  group[5] = string.format('%.0f', math.max(0, clock - tonumber(group[5])))
  group[8] = string.format('%.0f', math.max(0, clock - heard))
  reply[#reply + 1] = {name, unpack(group, 1, 8)}
end
return reply
