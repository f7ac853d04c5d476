-- Sends the requests of the file named by PRESIGNED, one after the other, and reports one
-- line of JSON. A file that runs out starts again; `wrapped` tells the caller, who must not
-- accept that for writes.
wrapped = 0
local file
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  file = assert(io.open(os.getenv("PRESIGNED"), "rb"))
  file:setvbuf("full", 1048576)
end

function request()
  local length = file:read(8)
  if not length then
    wrapped = wrapped + 1
    file:seek("set", 0)
    length = file:read(8)
  end
  return file:read(tonumber(length))
end

function done(summary, latency, requests)
  local turns = 0
  for _, thread in ipairs(threads) do
    turns = turns + thread:get("wrapped")
  end
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"duration_us":%d,"bytes":%d,"bad_status":%d,"broken":%d,' ..
    '"timeouts":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,"wrapped":%d}\n',
    summary.requests, summary.duration, summary.bytes, errors.status,
    errors.connect + errors.read + errors.write, errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max, turns))
end
