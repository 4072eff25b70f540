// Changes by hand: each is shown and confirmed first, and holds only for the state that was shown.
const part = encodeURIComponent;
const CHANGES = {
  rollback: {
    verb: "Roll back",
    title: ({ model }) => `Roll back ${model}`,
    text: () => "All traffic returns to the version that last had 100 %. A rollout in progress is aborted.",
    path: ({ model }) => `models/${part(model)}/rollback`,
  },
  promote: {
    verb: "Promote",
    title: ({ model, rollout }) => `Promote rollout ${rollout} of ${model}`,
    text: ({ version }) => `${version} gets all the traffic now, whatever the guards have seen.`,
    path: ({ model, rollout }) => `models/${part(model)}/rollouts/${rollout}/promote`,
  },
  abort: {
    verb: "Abort",
    title: ({ model, rollout }) => `Abort rollout ${rollout} of ${model}`,
    text: ({ stable }) => `All traffic returns to ${stable}.`,
    path: ({ model, rollout }) => `models/${part(model)}/rollouts/${rollout}/abort`,
  },
};
let asked = null; // the change that the dialog asks about, with the ETag of the state that it shows

const changeButton = (kind, name, data) => make("button", {
  type: "button", "data-kind": kind, ...Object.fromEntries(Object.entries(data).map(([key, value]) => [`data-${key}`, value])),
}, name);
const weightsText = (weights) =>
  Object.entries(weights).filter(([, weight]) => weight).map(([version, weight]) => `${version} ${weight} %`).join(", ") || "none";

async function lookAtTraffic() {
  const answer = await fetch(`models/${part(asked.model)}/traffic`, { headers: reader() });
  if (!answer.ok) throw new Error(await refusal(answer));
  asked.etag = answer.headers.get("etag");
  show("change-now", `Traffic at present: ${weightsText((await answer.json()).weights)}.`);
}

async function askForChange(data) {
  if (!isSignedIn() && !(await signIn())) return;
  asked = { ...data, ...CHANGES[data.kind], etag: null };
  show("change-title", asked.title(asked));
  show("change-text", asked.text(asked));
  show("change-confirm", asked.verb);
  show("change-now", "");
  show("change-problem", "");
  byId("change-reason").value = "";
  byId("change").showModal();
  await lookAtTraffic().catch((error) => show("change-problem", error.message));
}

// Send the change that was confirmed; return why it was refused.
async function sendChange() {
  if (!asked.etag) await lookAtTraffic();
  const reason = byId("change-reason").value.trim();
  const query = reason ? `?${new URLSearchParams({ reason })}` : "";
  const headers = { "If-Match": asked.etag, ...changer() };
  const answer = await fetch(asked.path(asked) + query, { method: "POST", headers });
  if (answer.ok) return "";
  const problem = await refusal(answer);
  if (answer.status === 401 || answer.status === 403) keepToken(null); // it was right once, and is no more
  if (answer.status === 412) await lookAtTraffic(); // the user may confirm what it is by now
  return problem;
}

on(byId("change-form"), "submit", async (event) => {
  event.preventDefault();
  show("change-problem", "");
  if (!isSignedIn() && !(await signIn())) return;
  const problem = await sendChange().catch((error) => `The change was not made: ${error.message}`);
  refreshSoon();
  show("change-problem", problem);
  if (problem) return;
  byId("change").close();
  show("change-outcome", `Done: ${asked.title(asked)}.`);
  byId("change-outcome").focus();
});
on(document, "click", (event) => {
  const button = event.target.closest("[data-kind]");
  if (button) askForChange({ ...button.dataset });
});
