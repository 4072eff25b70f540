-- For wrk: posts the bodies in turn. Arguments after "--": the marker, the headers as "Name: value", "--", the files.
-- Wherever the marker stands in a request, the request's number replaces it. Prints one JSON line.
local requests, turn, number, run = {}, 0, 0, 0

local function split(text, marker)
   local pieces, start = {}, 1
   while true do
      local first, last = text:find(marker, start, true)
      if not first then break end
      pieces[#pieces + 1] = text:sub(start, first - 1)
      start = last + 1
   end
   pieces[#pieces + 1] = text:sub(start)
   return pieces
end

function init(args)
   local headers, i = {}, 2
   while args[i] ~= "--" do
      local name, value = args[i]:match("^([^:]+): (.*)$")
      headers[name] = value
      i = i + 1
   end
   for place = i + 1, #args do
      local file = assert(io.open(args[place], "rb"))
      requests[#requests + 1] = split(wrk.format("POST", nil, headers, file:read("*a")), args[1])
      file:close()
   end
   math.randomseed(os.time())
   run = math.random(0, 0x7fffffff)
end

function request()
   turn = turn % #requests + 1
   local pieces = requests[turn]
   if #pieces == 1 then return pieces[1] end
   number = number + 1
   return table.concat(pieces, string.format("%08x%08x%08x", run, number, turn))
end

function done(summary, latency)
   local e = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "seconds": %.6f, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, '
      .. '"errors": {"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
      latency:percentile(99) / 1e3, latency.max / 1e3, e.status, e.connect, e.read, e.write, e.timeout))
end
