// Everything that is shown of a look: the tiles, the plots and the table of versions.
const PALETTE = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const RECENT_SECONDS = 10;
const colours = new Map(); // version -> its colour, the same as long as the page is open

function colourOf(name) {
  if (!colours.has(name)) colours.set(name, `var(${PALETTE[colours.size % PALETTE.length]})`);
  return colours.get(name);
}

const swatch = (name) => make("i", { class: "swatch", "aria-hidden": "true", style: { background: colourOf(name) } });
const rateOf = (point) => total(point.rates);
const badOf = ({ rates }) => (rates.server_error ?? 0) + (rates.overload ?? 0);
const describe = (id, text) => byId(id).setAttribute("aria-label", text);

function tile(id, number, sub, label, tone = "") {
  show(id, number);
  show(`${id}-sub`, sub);
  describe(`${id}-plot`, label);
  byId(id).closest(".tile").dataset.tone = tone;
}

function showGateway({ gateway }, time) {
  const facts = Object.entries({
    gateway: gateway.name,
    release: gateway.version,
    backend: gateway.backend,
    "up for": gateway.started ? duration(time - gateway.started) : MINUS,
    CPU: `${Math.round(gateway.cpu * 100)} %`,
    memory: gateway.memory_bytes ? megabytes(gateway.memory_bytes) : MINUS,
  });
  byId("facts").replaceChildren(...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
  show("objective", `${gateway.objective_ms} ms`);
  const num = gateway.others.length;
  const others = num ? `It shares its state with ${num} more, each with figures of its own: ${gateway.others.join(", ")}.` : "It shares its state with no other gateway.";
  show("gateways", `Figures of the gateway process ${gateway.name}, once a second. ${others}`);
  const isWell = gateway.backend_up && !gateway.waiting_for;
  setState(isWell ? "live" : "degraded", isWell ? "Live" : gateway.waiting_for || "The backend does not answer");
}

function setState(state, text) {
  byId("state").dataset.state = state;
  document.body.classList.toggle("stale", state === "lost");
  show("state-text", text);
}

function showTraffic(points, recent, time) {
  const last = points.at(-1);
  const most = short(Math.max(...points.map(rateOf)));
  tile("requests", short(rateOf(last)), `most in 5 min: ${most}`, `Requests per second over the last 5 minutes, at most ${most}`);
  drawLines("requests-plot", points, time, [{ read: rateOf, isFilled: true }]);

  const share = sum(recent, rateOf) ? sum(recent, badOf) / sum(recent, rateOf) : 0;
  const kinds = [["server_error", "5xx"], ["overload", "429"], ["client_error", "4xx"], ["cancelled", "left"]];
  const told = kinds.map(([kind, name]) => [name, sum(recent, ({ rates }) => rates[kind]) / recent.length])
    .filter(([, rate]) => rate).map(([name, rate]) => `${name} ${short(rate)}/s`).join(" · ");
  const label = `Requests answered 5xx or 429 per second, at present ${short(badOf(last))}`;
  tile("errors", percent(share), told || "none in 10 s", label, share >= 0.01 ? "bad" : share > 0 ? "warn" : "");
  const fills = Object.entries({ server_error: "--bad", overload: "--warn", client_error: "--idle" });
  drawStack("errors-plot", points, time, fills.map(([kind, fill]) => ({
    read: (point) => point.rates[kind] ?? 0, fill: `var(${fill})`,
  })), 1, 40);
}

function showLatency({ gateway, edges }, points, time) {
  const objective = gateway.objective_ms;
  const [p50, p95, p99] = points.at(-1).quantiles ?? [];
  const told = p99 ? `p50 ${short(p50)}, p95 ${short(p95)}, p99 ${short(p99)} milliseconds` : "no requests";
  tile("p99", short(p99), p99 ? `p50 ${short(p50)} · p95 ${short(p95)}` : "no requests in 10 s",
    `Latency over the last 5 minutes, at present ${told}`, p99 > objective ? "warn" : "");
  const at = (i) => (point) => point.quantiles?.[i] ?? null;
  drawLines("p99-plot", points, time, [
    { read: at(0), kind: "faint" }, { read: at(1), kind: "middle" }, { read: at(2), isFilled: true },
  ], { least: objective / 4, bound: p99 > objective / 4 ? objective : null });
  drawHeat(byId("heat"), points, time, edges, objective / 1000);
  describe("heat", `Latency of answered requests over the last 5 minutes, at present ${told}`);
}

function showQueue({ gateway, versions }, points, time) {
  const { waiting } = points.at(-1);
  const oldest = Math.max(0, ...versions.map((version) => version.oldest_ms));
  tile("queue", short(waiting), waiting ? `oldest waits ${milliseconds(oldest)}` : "nothing waits",
    `Images that wait, over the last 5 minutes; at present ${waiting}`, oldest > gateway.objective_ms / 2 ? "warn" : "");
  drawLines("queue-plot", points, time, [{ read: (point) => point.waiting, isFilled: true }], { least: 4 });
}

function showBatches({ sizes, versions, rejected }, points, recent, time) {
  const limit = Math.max(0, ...versions.filter(({ requests }) => requests).map((version) => version.limit));
  const inFlight = short(sum(versions, (version) => version.in_flight));
  const means = recent.map(({ batch }) => batch).filter((batch) => batch !== null);
  const mean = short(means.length ? total(means) / means.length : null);
  tile("batch", mean, limit ? `limit ${short(limit)} · ${inFlight} in flight` : `${inFlight} batches in flight`,
    `Mean batch size over the last 5 minutes; at present ${means.length ? mean : "no batches"}`);
  drawLines("batch-plot", points, time, [{ read: ({ batch }) => batch, isFilled: true }], { least: 2, bound: limit || null });

  const minute = points.filter((point) => time - point.time < 60);
  const counts = [...sizes, Infinity].map((_, i) => sum(minute, (point) => point.sizes[i]));
  const last = Math.max(5, counts.findLastIndex((count) => count), sizes.findIndex((size) => size >= limit));
  const [most, all] = [Math.max(1, ...counts), total(counts)];
  byId("sizes").replaceChildren(...counts.slice(0, last + 1).map((count, i) => {
    const [from, to] = [i ? sizes[i - 1] + 1 : 1, sizes[i] ?? Infinity];
    const name = to === Infinity ? `>${from - 1}` : from === to ? `${from}` : `${from}–${to}`;
    const rod = make("i", { style: { height: `${(count / most) * 100}%` } });
    const share = make("span", {}, count ? `${percent(count / all)} %` : "");
    const state = { "data-empty": !count, "data-limit": limit >= from && limit <= to };
    return make("div", { class: "bar", ...state }, share, rod, make("span", { class: "size" }, name));
  }));
  const told = counts.map((count, i) => (count ? `up to ${sizes[i] ?? "more"}: ${count}` : "")).filter(Boolean).join(", ");
  describe("sizes", `Batches of the last minute by size: ${told || "none"}`);
  show("sizes-key", all ? `${short(all)} ${all === 1 ? "batch" : "batches"}${limit ? ` · limit ${short(limit)}` : ""}` : "no batches");
  byId("rejected").replaceChildren(...Object.entries(rejected).map(([reason, rate]) =>
    make("li", {}, `refused, ${reason.replaceAll("_", " ")}: ${short(rate)}/s`)));
}

function lamps(states, wanted) {
  const all = Object.entries(states).flatMap(([state, count]) => Array(count).fill(state));
  while (all.length < wanted) all.push("missing");
  return all.map((state) => make("i", { "data-state": state, title: state }));
}

function showWorkers(versions) {
  const ready = sum(versions, (version) => version.workers.ready);
  const wanted = sum(versions, (version) => version.num_workers);
  const cutOff = versions.filter((version) => version.is_cut_off).map(({ name }) => name).join(", ");
  const loaded = `${versions.length} ${versions.length === 1 ? "version" : "versions"} loaded`;
  const label = `${ready} of ${wanted} workers are ready`;
  tile("workers", short(ready), cutOff ? `circuit open: ${cutOff}` : loaded, label, ready < wanted ? "warn" : "");
  show("workers-all", `of ${wanted} ready`);
  byId("workers-plot").replaceChildren(...versions.flatMap((version) => lamps(version.workers, version.num_workers)).slice(0, 64));
}

function showSplit(versions, points, time) {
  const names = new Set([...versions.map(({ name }) => name), ...points.flatMap((point) => Object.keys(point.versions))]);
  const shown = [...names].filter((name) => points.some((point) => point.versions[name]));
  const most = drawStack("split-plot", points, time, shown.map((name) => ({
    read: (point) => point.versions[name] ?? 0, fill: colourOf(name),
  })));
  show("split-top", shown.length ? `top of scale ${short(most)}/s` : "no requests");
  byId("split-key").replaceChildren(...versions.map(({ name }) => make("span", {}, swatch(name), name)));
  describe("split-plot", `Requests per second: ${versions.map(({ name, requests }) => `${name} ${short(requests)}`).join(", ")}`);
  const models = Object.entries(Object.groupBy(versions, ({ model }) => model));
  byId("shares").replaceChildren(...models.map(([model, own]) => {
    const seen = sum(own, (version) => version.requests);
    const stack = (read, name) => {
      const label = `${name}: ${own.map((version) => `${version.version} ${percent(read(version))} %`).join(", ")}`;
      return make("div", { class: "stack", role: "img", "aria-label": label },
        ...own.filter(read).map((version) => bar(read(version), colourOf(version.name))));
    };
    return make("div", { class: "share" }, ...(models.length > 1 ? [make("h3", {}, model)] : []),
      make("span", {}, "set"), stack((version) => version.weight / 100, "Traffic as it is set"),
      make("span", {}, "seen"), stack((version) => (seen ? version.requests / seen : 0), "Traffic of the last 10 seconds"));
  }));
}

function showVersions(versions) {
  const models = [...new Set(versions.map(({ model }) => model))];
  refill(byId("controls"), models, () => models.map((model) => changeButton("rollback", `Roll back ${model}`, { model })));
  document.body.toggleAttribute("data-drift", versions.some((version) => Object.keys(version.drift).length));
  byId("versions").replaceChildren(...versions.map((version) => {
    const cell = (label, content, kind = "n") => make("td", { class: kind, "data-label": label }, ...[content].flat());
    const tags = [...version.labels, version.shadow ? `shadow ${version.shadow} %` : "", version.is_cut_off ? "circuit open" : ""]
      .filter(Boolean).map((tag) => make("span", { class: "tag" }, tag));
    const [p50, p95, p99] = version.quantiles ?? [];
    const bad = sum(["server_error", "expired", "shed"], (kind) => version.outcomes[kind]);
    const weight = make("div", { class: "stack" }, bar(version.weight / 100, colourOf(version.name)));
    const state = [make("span", { class: "state", "data-state": version.state }, version.state)];
    if (version.reason) state.push(make("p", { class: "reason" }, version.reason));
    const drift = Object.entries(version.drift).map(([kind, score]) => make("span", { class: "score" }, `${kind} ${short(score)}`));
    return make("tr", {},
      cell("version", make("span", { class: "name" }, swatch(version.name), version.name, ...tags), "first"),
      cell("state", state, ""),
      cell("traffic", make("span", { class: "weight" }, weight, `${version.weight} %`), ""),
      cell("req/s", short(version.requests)), cell("p50, ms", short(p50)), cell("p95, ms", short(p95)), cell("p99, ms", short(p99)),
      cell("errors/s", short(bad), bad ? "n hot" : "n"), cell("batch / limit", `${short(version.batch)} / ${short(version.limit)}`),
      cell("waiting", short(version.waiting)), cell("workers", make("div", { class: "lamps" }, ...lamps(version.workers, version.num_workers)), ""),
      cell("cost, ms", version.per_item_ms || version.fixed_ms ? `${short(version.fixed_ms)} + ${short(version.per_item_ms)} n` : MINUS),
      cell("drift", drift.length ? drift : MINUS, "n drift"));
  }));
}

function render(now, points) {
  const time = points.at(-1).time;
  const recent = points.filter((point) => time - point.time < RECENT_SECONDS);
  span = [60, 120].find((seconds) => time - points[0].time < seconds) ?? LONGEST_SECONDS;
  for (const element of document.querySelectorAll(".ago")) element.textContent = `${span / 60} min ago`;
  for (const { name } of now.versions) colourOf(name);
  showGateway(now, time);
  showTraffic(points, recent, time);
  showLatency(now, points, time);
  showQueue(now, points, time);
  showBatches(now, points, recent, time);
  showWorkers(now.versions);
  showSplit(now.versions, points, time);
  showRollouts(now.rollouts);
  showVersions(now.versions);
}
