// Everything that is shown of a look: the tiles, the plots and the table of versions.
const PALETTE = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const BAD = ["server_error", "overload"];
const RECENT_SECONDS = 10;
const colours = new Map(); // version -> its colour, the same as long as the page is open

function colourOf(name) {
  if (!colours.has(name)) colours.set(name, `var(${PALETTE[colours.size % PALETTE.length]})`);
  return colours.get(name);
}

const swatch = (name) => {
  const element = make("i", { class: "swatch", "aria-hidden": "true" });
  element.style.background = colourOf(name);
  return element;
};

const rateOf = (point) => total(point.rates);
const badOf = (point) => BAD.reduce((sum, kind) => sum + (point.rates[kind] ?? 0), 0);

function showGateway(now, time) {
  const { gateway } = now;
  show("fact-version", gateway.version);
  show("fact-backend", gateway.backend);
  show("fact-uptime", gateway.started ? duration(time - gateway.started) : MINUS);
  show("fact-cpu", `${Math.round(gateway.cpu * 100)} %`);
  show("fact-memory", gateway.memory_bytes ? megabytes(gateway.memory_bytes) : MINUS);
  show("objective", `${gateway.objective_ms} ms`);
  const isWell = gateway.backend_up && !gateway.waiting_for;
  setState(isWell ? "live" : "degraded", isWell ? "Live" : gateway.waiting_for || "The backend does not answer");
}

function setState(state, text) {
  byId("state").dataset.state = state;
  document.body.classList.toggle("stale", state === "lost");
  show("state-text", text);
}

function tone(id, name) {
  byId(id).closest(".tile").dataset.tone = name;
}

function describe(id, text) {
  byId(id).setAttribute("aria-label", text);
}

function showTraffic(points, time) {
  const last = points.at(-1);
  const recent = points.filter((point) => time - point.time < RECENT_SECONDS);
  const most = Math.max(...points.map(rateOf));
  show("requests", short(rateOf(last)));
  show("requests-sub", `most in 5 min: ${short(most)}`);
  describe("requests-plot", `Requests per second over the last 5 minutes, at most ${short(most)}`);
  drawLines(byId("requests-plot"), points, time, [{ read: rateOf, area: true }]);

  const sum = (read) => recent.reduce((all, point) => all + read(point), 0);
  const share = sum(rateOf) ? sum(badOf) / sum(rateOf) : 0;
  const mean = (kind) => sum((point) => point.rates[kind] ?? 0) / recent.length;
  show("errors", percent(share));
  tone("errors", share >= 0.01 ? "bad" : share > 0 ? "warn" : "");
  const parts = [["server_error", "5xx"], ["overload", "429"], ["client_error", "4xx"], ["cancelled", "left"]];
  const told = parts.filter(([kind]) => mean(kind)).map(([kind, name]) => `${name} ${short(mean(kind))}/s`);
  show("errors-sub", told.join(" · ") || "none in 10 s");
  describe("errors-plot", `Requests answered 5xx or 429 per second, at present ${short(badOf(last))}`);
  drawStack(byId("errors-plot"), points, time, [
    { read: (point) => point.rates.server_error ?? 0, fill: "var(--bad)" },
    { read: (point) => point.rates.overload ?? 0, fill: "var(--warn)" },
    { read: (point) => point.rates.client_error ?? 0, fill: "var(--idle)" },
  ], 1, 40);
}

function showLatency(now, points, time) {
  const objective = now.gateway.objective_ms;
  const last = points.at(-1).quantiles;
  show("p99", last ? short(last[2]) : MINUS);
  show("latency-sub", last ? `p50 ${short(last[0])} · p95 ${short(last[1])}` : "no requests in 10 s");
  tone("p99", last && last[2] > objective ? "warn" : "");
  const at = (i) => (point) => point.quantiles?.[i] ?? null;
  drawLines(byId("latency-plot"), points, time, [
    { read: at(0), kind: "faint" }, { read: at(1), kind: "middle" }, { read: at(2), area: true },
  ], { least: objective / 4, bound: last && last[2] > objective / 4 ? objective : null });
  const told = last ? `p50 ${short(last[0])}, p95 ${short(last[1])}, p99 ${short(last[2])} milliseconds` : "no requests";
  describe("latency-plot", `Latency over the last 5 minutes, at present ${told}`);
  drawHeat(byId("heat"), points, time, now.edges, objective / 1000);
  describe("heat", `Latency of answered requests over the last 5 minutes, at present ${told}`);
}

function showBatches(now, points, time) {
  const versions = now.versions;
  const waiting = points.at(-1).waiting;
  const oldest = Math.max(0, ...versions.map((version) => version.oldest_ms));
  const inFlight = versions.reduce((sum, version) => sum + version.in_flight, 0);
  show("queue", short(waiting));
  show("queue-sub", waiting ? `oldest waits ${milliseconds(oldest)}` : "nothing waits");
  tone("queue", oldest > now.gateway.objective_ms / 2 ? "warn" : "");
  describe("queue-plot", `Images that wait, over the last 5 minutes; at present ${waiting}`);
  drawLines(byId("queue-plot"), points, time, [{ read: (point) => point.waiting, area: true }], { least: 4 });

  const limit = Math.max(0, ...versions.filter((version) => version.requests).map((version) => version.limit));
  const recent = points.filter((point) => time - point.time < RECENT_SECONDS && point.batch !== null);
  const mean = recent.reduce((sum, point) => sum + point.batch, 0) / recent.length;
  show("batch", short(recent.length ? mean : null));
  show("batch-sub", limit ? `limit ${short(limit)} · ${short(inFlight)} in flight` : `${short(inFlight)} batches in flight`);
  describe("batch-plot", `Mean batch size over the last 5 minutes; at present ${recent.length ? short(mean) : "no batches"}`);
  drawLines(byId("batch-plot"), points, time, [{ read: (point) => point.batch, area: true }], { least: 2, bound: limit || null });

  const sizes = now.sizes.map(() => 0).concat(0);
  for (const point of points) if (time - point.time < 60) point.sizes.forEach((count, i) => (sizes[i] += count));
  const most = Math.max(1, ...sizes);
  const last = Math.max(5, ...sizes.map((count, i) => (count ? i : 0)), now.sizes.findIndex((edge) => edge >= limit));
  const all = total(sizes);
  const bars = sizes.slice(0, last + 1).map((count, i) => {
    const from = i ? now.sizes[i - 1] + 1 : 1;
    const name = i >= now.sizes.length ? `>${now.sizes.at(-1)}` : from === now.sizes[i] ? `${from}` : `${from}–${now.sizes[i]}`;
    const rod = make("i");
    rod.style.height = `${(count / most) * 100}%`;
    const isLimit = limit > 0 && limit >= from && limit <= (now.sizes[i] ?? Infinity);
    const share = make("span", {}, count ? `${percent(count / all)} %` : "");
    return make("div", { class: "bar", "data-empty": !count, "data-limit": isLimit }, share, rod, make("span", { class: "size" }, name));
  });
  byId("sizes").replaceChildren(...bars);
  show("sizes-key", all ? `${short(all)} ${all === 1 ? "batch" : "batches"}${limit ? ` · limit ${short(limit)}` : ""}` : "no batches");
  describe("sizes", `Batches of the last minute by size: ${sizes.map((n, i) => (n ? `up to ${now.sizes[i] ?? "more"}: ${n}` : "")).filter(Boolean).join(", ") || "none"}`);
  const reasons = Object.entries(now.rejected).map(([reason, rate]) => make("li", {}, `refused, ${reason.replaceAll("_", " ")}: ${short(rate)}/s`));
  byId("rejected").replaceChildren(...reasons);
}

function lamps(states, wanted) {
  const all = Object.entries(states).flatMap(([state, count]) => Array(count).fill(state));
  while (all.length < wanted) all.push("missing");
  return all.map((state) => make("i", { "data-state": state, title: state }));
}

function showWorkers(versions) {
  const ready = versions.reduce((sum, version) => sum + (version.workers.ready ?? 0), 0);
  const wanted = versions.reduce((sum, version) => sum + version.num_workers, 0);
  show("workers", short(ready));
  show("workers-all", `of ${wanted} ready`);
  tone("workers", ready < wanted ? "warn" : "");
  const cutOff = versions.filter((version) => version.is_cut_off);
  show("workers-sub", cutOff.length ? `circuit open: ${cutOff.map(({ name }) => name).join(", ")}` : `${versions.length} ${versions.length === 1 ? "version" : "versions"} loaded`);
  byId("workers-plot").replaceChildren(...versions.flatMap((version) => lamps(version.workers, version.num_workers)).slice(0, 64));
  describe("workers-plot", `${ready} of ${wanted} workers are ready`);
}

function showSplit(versions, points, time) {
  const names = versions.map(({ name }) => name);
  for (const point of points) for (const name in point.versions) if (!names.includes(name)) names.push(name);
  const shown = names.filter((name) => points.some((point) => point.versions[name]));
  const most = drawStack(byId("split-plot"), points, time, shown.map((name) => ({
    read: (point) => point.versions[name] ?? 0, fill: colourOf(name),
  })));
  show("split-top", shown.length ? `top of scale ${short(most)}/s` : "no requests");
  byId("split-key").replaceChildren(...versions.map(({ name }) => make("span", {}, swatch(name), name)));
  describe("split-plot", `Requests per second: ${versions.map(({ name, requests }) => `${name} ${short(requests)}`).join(", ")}`);
  const models = [...new Set(versions.map(({ model }) => model))];
  byId("shares").replaceChildren(...models.map((model) => {
    const own = versions.filter((version) => version.model === model);
    const seen = own.reduce((sum, version) => sum + version.requests, 0);
    const stack = (read, name) => {
      const bar = make("div", { class: "stack", role: "img", "aria-label": `${name}: ${own.map((v) => `${v.version} ${percent(read(v))} %`).join(", ")}` });
      bar.append(...own.filter(read).map((version) => wide("i", read(version), colourOf(version.name))));
      return bar;
    };
    const title = models.length > 1 ? [make("h3", {}, model)] : [];
    return make("div", { class: "share" }, ...title,
      make("span", {}, "set"), stack((version) => version.weight / 100, "Traffic as it is set"),
      make("span", {}, "seen"), stack((version) => (seen ? version.requests / seen : 0), "Traffic of the last 10 seconds"));
  }));
}

function showRollouts(rollouts) {
  byId("rollouts").replaceChildren(...rollouts.map((rollout) => {
    const steps = rollout.steps.map((percentage, i) =>
      make("li", { "data-step": i < rollout.step ? "done" : i === rollout.step ? "now" : "later" }, `${percentage} %`));
    const text = make("p", {}, `Rollout ${rollout.id} of ${rollout.model}: `, make("b", {}, rollout.stable), " → ", make("b", {}, rollout.version), `, ${rollout.state}`);
    return make("article", { class: "panel rollout" }, text, make("ol", { class: "steps", "aria-label": "Steps" }, ...steps));
  }));
}

function showVersions(versions) {
  document.body.toggleAttribute("data-drift", versions.some((version) => Object.keys(version.drift).length));
  byId("versions").replaceChildren(...versions.map((version) => {
    const cell = (label, content, kind = "n") => make("td", { class: kind, "data-label": label }, ...[content].flat());
    const tags = [...version.labels, version.shadow ? `shadow ${version.shadow} %` : "", version.is_cut_off ? "circuit open" : ""];
    const q = version.quantiles ?? [null, null, null];
    const bad = ["server_error", "expired", "shed"].reduce((sum, kind) => sum + (version.outcomes[kind] ?? 0), 0);
    const weight = make("div", { class: "stack" });
    weight.append(wide("i", version.weight / 100, colourOf(version.name)));
    const state = [make("span", { class: "state", "data-state": version.state }, version.state)];
    if (version.reason) state.push(make("p", { class: "reason" }, version.reason));
    const drift = Object.entries(version.drift).map(([kind, score]) => `${kind} ${short(score)}`).join(" · ");
    return make("tr", {},
      cell("version", make("span", { class: "name" }, swatch(version.name), version.name, ...tags.filter(Boolean).map((tag) => make("span", { class: "tag" }, tag))), "first"),
      cell("state", state, ""),
      cell("traffic", make("span", { class: "weight" }, weight, `${version.weight} %`), ""),
      cell("req/s", short(version.requests)), cell("p50, ms", short(q[0])), cell("p95, ms", short(q[1])), cell("p99, ms", short(q[2])),
      cell("errors/s", short(bad), bad ? "n hot" : "n"), cell("batch / limit", `${short(version.batch)} / ${short(version.limit)}`),
      cell("waiting", short(version.waiting)), cell("workers", make("div", { class: "lamps" }, ...lamps(version.workers, version.num_workers)), ""),
      cell("cost, ms", version.per_item_ms || version.fixed_ms ? `${short(version.fixed_ms)} + ${short(version.per_item_ms)} n` : MINUS),
      cell("drift", drift || MINUS, "n drift"));
  }));
}

function showSpan(points, time) {
  span = [60, 120].find((seconds) => time - points[0].time < seconds) ?? LONGEST_SECONDS;
  for (const element of document.querySelectorAll(".ago")) element.textContent = `${span / 60} min ago`;
}

function render(now, points) {
  const time = points.at(-1).time;
  showSpan(points, time);
  for (const { name } of now.versions) colourOf(name);
  showGateway(now, time);
  showTraffic(points, time);
  showLatency(now, points, time);
  showBatches(now, points, time);
  showWorkers(now.versions);
  showSplit(now.versions, points, time);
  showRollouts(now.rollouts);
  showVersions(now.versions);
}
