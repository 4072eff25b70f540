// How good the answers are: drift against its thresholds, accuracy by feedback, and the classes beside their reference.
const MOST_CARDS = 6;
const MOST_CLASSES = 10;

function scoreLine({ kind, value, threshold }) {
  const isHigh = value > threshold;
  const track = make("div", { class: "stack", "aria-hidden": "true" }, bar(value / threshold, isHigh ? "var(--bad)" : ""));
  return make("li", {}, make("span", {}, `drift of ${kind}`), track, make("em", isHigh ? { class: "hot" } : {}, `${short(value)} of ${short(threshold)}`));
}

// A class's share in service; a mark shows the share among the validation images.
function classLine({ label, share, reference_share }) {
  const track = make("div", { class: "stack marked", "aria-hidden": "true" }, bar(share ?? 0));
  if (reference_share !== null) track.append(make("b", { style: { left: `${Math.min(reference_share, 1) * 100}%` } }));
  const told = share === null ? MINUS : `${percent(share)} %`;
  return make("li", {}, make("span", { title: label }, label), track,
    make("em", {}, told, make("small", {}, reference_share === null ? "" : ` / ${percent(reference_share)} %`)));
}

function accuracyText({ feedback: { num_labelled, accuracy } }, contract) {
  const validated = contract?.evaluation?.accuracy;
  const seen = num_labelled ? `${percent(accuracy)} % right of ${short(num_labelled)} by feedback` : "no feedback yet";
  return typeof validated === "number" ? `${seen}; ${percent(validated)} % in validation` : seen;
}

function qualityCard(model, version, contract) {
  const { state, reason, window_items: items, scores, classes } = version;
  const name = `${model} ${version.version}`;
  const first = [...classes].sort((a, b) => (b.share ?? b.reference_share ?? 0) - (a.share ?? a.reference_share ?? 0)).slice(0, MOST_CLASSES);
  const more = classes.length - first.length;
  const about = [`${short(classes.length)} classes`, items ? `last ${short(items)} images` : "no images yet", more > 0 ? `the ${first.length} most frequent shown` : ""];
  return make("article", { class: "card" },
    make("h3", { class: "name" }, swatch(name), name, make("span", { class: state === "drifting" ? "tag hot" : "tag" }, `drift: ${state}`)),
    make("p", { class: "reason" }, accuracyText(version, contract)),
    ...(scores.length ? [make("ul", { class: "scores", "aria-label": "Drift of its threshold" }, ...scores.map(scoreLine))] : []),
    ...(reason ? [make("p", { class: "reason" }, reason)] : []),
    make("p", { class: "reason" }, about.filter(Boolean).join(" · ")),
    make("ul", { class: "scores", "aria-label": "Share of each class, and its share in validation" }, ...first.map(classLine)));
}

// `models` are answers of /models/{model}/quality; `contracts` go by the name of the version.
function showQuality(models, contracts) {
  const all = models.flatMap(({ model, versions }) => versions.map((version) => [model, version]));
  const shown = all.slice(0, MOST_CARDS);
  refill(byId("quality"), [shown, shown.map(([model, { version }]) => contracts.get(`${model} ${version}`)?.evaluation)], () =>
    shown.map(([model, version]) => qualityCard(model, version, contracts.get(`${model} ${version.version}`))));
  const rest = all.length - shown.length;
  show("quality-key", all.length ? `bar: in service, mark: in validation${rest > 0 ? ` · ${rest} more versions are not shown` : ""}` : "no version is ready");
}
