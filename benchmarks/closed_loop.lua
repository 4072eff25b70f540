-- For wrk: posts the bodies in turn; arguments after "--" are the content type and the files. Prints one JSON line.
local requests, turn = {}, 0

function init(args)
   for i = 2, #args do
      local file = assert(io.open(args[i], "rb"))
      local headers = { ["Content-Type"] = args[1] }
      requests[i - 1] = wrk.format("POST", nil, headers, file:read("*a"))
      file:close()
   end
end

function request()
   turn = turn % #requests + 1
   return requests[turn]
end

function done(summary, latency)
   local e = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "seconds": %.6f, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, '
      .. '"errors": {"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
      latency:percentile(99) / 1e3, latency.max / 1e3, e.status, e.connect, e.read, e.write, e.timeout))
end
