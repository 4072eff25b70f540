// Rollouts: how far each is, why it waits or why it ended, and what each guard has seen.
const GUARDS = {
  errors: "failed requests", p99: "slow requests", agreement: "another class than the stable version", accuracy: "wrong by feedback",
};
const articles = new Map(); // the rollouts that are shown, by model and number; their buttons stay while figures change
const progress = new Map(); // what the API tells of each
const isActive = ({ state }) => state === "running" || state === "paused";
const rolloutKey = ({ model, id }) => `${model}/${id}`;

function newArticle({ model, id, version, stable }) {
  const data = { model, rollout: id, version, stable };
  const parts = {
    state: make("span", { class: "tag" }),
    actions: make("div", { class: "row" }, changeButton("promote", "Promote", data), changeButton("abort", "Abort", data)),
    steps: make("ol", { class: "steps", "aria-label": "Steps" }),
    why: make("p", { class: "why" }),
    guards: make("div", { class: "guards" }),
  };
  const title = make("h2", {}, `Rollout ${id} of ${model}: ${stable} → ${version} `, parts.state);
  const head = make("div", { class: "head" }, title, parts.actions);
  return { parts, element: make("article", { class: "panel rollout" }, head, parts.steps, parts.why, parts.guards) };
}

// Why a rollout is where it is. One that runs waits for requests, for time, or for both.
function why({ state, step, steps, reason }, told) {
  if (state === "paused") return `Paused at ${steps[step]} %. The guards keep watching.`;
  if (state !== "running") return `${reason || state}${told?.ended ? ` (${clock(told.ended)})` : ""}`;
  if (!told) return "";
  const [requests, seconds] = [told.min_requests - told.step_requests, Math.ceil(told.min_seconds - told.step_seconds)];
  const missing = [requests > 0 ? `${short(requests)} of ${short(told.min_requests)} judged requests` : "",
    seconds > 0 ? `${duration(seconds)} of ${duration(told.min_seconds)}` : ""].filter(Boolean);
  if (!missing.length) return "This step is done; the next one follows.";
  const hint = told.step_requests ? "" : " No request has been judged in this step: the callers must leave the version to the traffic policy.";
  return `Waits at ${steps[step]} % for ${missing.join(" and ")}.${hint}`;
}

// Evidence grows by factors: its bar is logarithmic, and full where the guard breaks.
function guardRow({ name, num_bad, num_all, stable_num_bad, stable_num_all, evidence, breaks_at }) {
  const isBroken = evidence >= breaks_at;
  const share = Math.min(Math.max(Math.log(evidence) / Math.log(breaks_at), 0), 1) || 0;
  const counted = (bad, all) => (all === null ? "a fixed limit" : all ? `${short(bad)} of ${short(all)} (${percent(bad / all)} %)` : "nothing yet");
  const number = evidence >= 1e6 ? evidence.toExponential(1) : short(evidence);
  const track = make("span", { class: "stack", "aria-hidden": "true" }, bar(share, isBroken ? "var(--bad)" : ""));
  const cell = (label, ...content) => make("td", { "data-label": label }, ...content);
  return make("tr", isBroken ? { class: "broken" } : {},
    make("th", { scope: "row" }, name, make("small", {}, GUARDS[name] ?? "")),
    cell("new version", counted(num_bad, num_all)), cell("stable version", counted(stable_num_bad, stable_num_all)),
    cell("evidence / limit", make("span", { class: "weight" }, track, `${number} of ${short(breaks_at)}${isBroken ? ", broken" : ""}`)));
}

function guardTable(guards) {
  const heads = ["guard", "new version", "stable version", "evidence / limit"];
  return make("table", {}, make("caption", { class: "hidden" }, "What each guard has seen"),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...guards.map(guardRow)));
}

function showRollouts(rollouts) {
  const shown = rollouts.map(rolloutKey);
  for (const key of [...articles.keys()]) if (!shown.includes(key)) [articles, progress].forEach((each) => each.delete(key));
  for (const rollout of rollouts) if (!articles.has(rolloutKey(rollout))) articles.set(rolloutKey(rollout), newArticle(rollout));
  refill(byId("rollouts"), shown, () => shown.map((key) => articles.get(key).element));
  for (const rollout of rollouts) {
    const { parts } = articles.get(rolloutKey(rollout));
    const told = progress.get(rolloutKey(rollout));
    const { state, step, steps } = rollout;
    parts.actions.hidden = !isActive(rollout);
    refill(parts.state, state, () => [state.replace("_", " ")]);
    refill(parts.steps, [step, steps], () => steps.map((percentage, i) =>
      make("li", { "data-step": i < step ? "done" : i === step ? "now" : "later" }, `${percentage} %`)));
    refill(parts.why, why(rollout, told), () => [why(rollout, told)]);
    refill(parts.guards, told?.guards ?? [], () => (told?.guards.length ? [guardTable(told.guards)] : []));
  }
}
