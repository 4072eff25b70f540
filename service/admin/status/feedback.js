// Feedback on the answer that is shown: right, or wrong with the right class.
let judged = null; // the answer
let isSending = false;

function askForFeedback(answer) {
  judged = answer;
  isSending = false;
  byId("feedback").hidden = false;
  unfold(false);
  tellOutcome("", "");
}

function unfold(isOpen) {
  byId("correction").hidden = !isOpen;
  byId("wrong").setAttribute("aria-expanded", isOpen);
}

function tellOutcome(text, tone) {
  byId("outcome").dataset.tone = tone; // a status that is never hidden, so that screen readers announce it
  show("outcome", text);
}

// All classes of the version; those of the answer alone if the gateway does not tell its contract.
async function classesOf({ model, version, predictions: [{ top_k }] }) {
  const listed = top_k.map(({ label }) => label);
  try {
    const answer = await fetch(`models/${encodeURIComponent(model)}`, { headers: credentials() });
    if (!answer.ok) return listed;
    const { versions } = await answer.json();
    return versions.find((each) => each.version === version)?.contract.classes ?? listed;
  } catch {
    return listed;
  }
}

async function chooseClass() {
  const answer = judged;
  const classes = await classesOf(answer);
  if (answer !== judged) return; // another answer is shown by now
  const others = classes.filter((label) => label !== answer.predictions[0].label);
  byId("right-class").replaceChildren(...others.map((label) => make("option", { value: label }, label)));
  unfold(true);
  byId("right-class").focus();
}

async function sendFeedback(label) {
  if (isSending) return;
  isSending = true;
  const answer = judged;
  let [text, tone] = ["", "bad"];
  try {
    const headers = { "Content-Type": "application/json", ...credentials() };
    const taken = await fetch("feedback", { method: "POST", headers, body: JSON.stringify({ id: answer.id, label }) });
    const told = await taken.json();
    if (taken.ok) {
      const what = told.correct ? "right" : `wrong, it is ${told.label}`;
      [text, tone] = [`Counted for ${told.model} ${told.version}: ${what}.`, "good"];
    } else {
      text = told.detail ?? `Status ${taken.status}`;
    }
  } catch (error) {
    text = `The gateway was not reached: ${error.message}`;
  }
  if (answer !== judged) return;
  isSending = false;
  const hadFocus = byId("feedback").contains(document.activeElement);
  byId("feedback").hidden = tone === "good"; // an image counts once
  tellOutcome(text, tone);
  if (hadFocus && tone === "good") byId("outcome").focus();
}

on(byId("right"), "click", () => sendFeedback(judged.predictions[0].label));
on(byId("wrong"), "click", () => (byId("correction").hidden ? chooseClass() : unfold(false)));
on(byId("correction"), "submit", (event) => {
  event.preventDefault();
  sendFeedback(byId("right-class").value);
});
