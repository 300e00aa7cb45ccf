-- Shared by requeue.lua and end_forward.lua: a letter in the place of an older one. dead_letter_retention.lua comes before it.
--
-- forwards  hash: mailbox of another shard -> id of the letter that is on its way there. One at a time: so they come in order.
--           Such a letter has the fields to = the mailbox, shard = its shard; entry, born and exclusive are as if that mailbox
--           had got it when it was addressed, and was gone since. One that did not get there has `to`, and no `shard`

-- Lay a letter with the fields of another one, but for some; false takes a field away. Returns its id.
local function lay_in_place(dead, prefix, letter, changed)
  local fields = {}
  local function put(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if changed.at == nil then changed.at = letter[1]:match('^%d+') end
  for i = 1, #letter[2], 2 do
    local name, value = letter[2][i], letter[2][i + 1]
    if name == 'at' then changed.at = value end
    if changed[name] == nil then put(name, value) end
  end
  for name, value in pairs(changed) do
    if value then put(name, value) end
  end
  -- No limit: it takes the place of one that was larger.
  local id = redis.call('XADD', dead, '*', unpack(fields))
  bound(dead, prefix, math.huge, 1, weight(fields))
  return id
end
