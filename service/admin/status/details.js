// What the stream does not bring, by the API's own routes: events, quality, and the evidence of rollouts.
const DETAILS_MS = 5_000;
const EVIDENCE_MS = 2_000;
const MOST_MODELS = 10;
const contracts = new Map(); // by the name of the version
const due = { details: 0, evidence: 0 }; // performance.now() of the next time that each is asked for
let isAsking = false;
let seen = ""; // what a change would change

async function told(path) {
  const answer = await fetch(path, { headers: reader() });
  return answer.ok ? answer.json() : null;
}

// Ask anew with the next figures: something was changed, or the user may read more.
function refreshSoon() {
  due.details = due.evidence = 0;
}

async function askForContracts(versions) {
  const missing = versions.filter(({ name, state }) => state === "ready" && !contracts.has(name)).map(({ model }) => model);
  for (const model of new Set(missing)) {
    for (const { version, state, contract } of (await told(`models/${part(model)}`))?.versions ?? []) {
      if (state === "ready") contracts.set(`${model} ${version}`, contract);
    }
  }
}

async function askForDetails({ versions }) {
  const models = [...new Set(versions.map(({ model }) => model))].slice(0, MOST_MODELS);
  const logs = await Promise.all(models.map((model) => told(`models/${part(model)}/events?limit=${MOST_EVENTS}`)));
  showEvents(logs.flatMap((log) => log?.events ?? []));
  await askForContracts(versions);
  const qualities = await Promise.all(models.map((model) => told(`models/${part(model)}/quality`)));
  showQuality(qualities.filter(Boolean), contracts);
}

// The evidence of an ended rollout is asked for once.
async function askForEvidence({ rollouts }) {
  const open = rollouts.filter((rollout) => isActive(rollout) || !progress.get(rolloutKey(rollout))?.ended);
  for (const { model, id } of open) {
    const found = await told(`models/${part(model)}/rollouts/${id}`);
    if (found) progress.set(rolloutKey({ model, id }), found);
  }
  showRollouts(rollouts);
}

async function refreshDetails(now) {
  const state = JSON.stringify([now.rollouts.map(({ state, step }) => [state, step]), now.versions.map(({ name, state, weight, labels }) => [name, state, weight, labels])]);
  if (state !== seen) refreshSoon();
  seen = state;
  if (document.hidden || isAsking) return;
  isAsking = true;
  try {
    for (const [kind, ask, period] of [["evidence", askForEvidence, EVIDENCE_MS], ["details", askForDetails, DETAILS_MS]]) {
      if (performance.now() < due[kind]) continue;
      due[kind] = performance.now() + period;
      await ask(now);
    }
  } catch {
    // The gateway is away; the stream says so, and the next figures ask again.
  } finally {
    isAsking = false;
  }
}
