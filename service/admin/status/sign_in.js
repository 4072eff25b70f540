// Signing in: a token is typed once, kept for this tab alone, and sent in a header, never in an address.
const KEPT = "torchgate-token";
let token = stored(() => sessionStorage.getItem(KEPT)); // null: not signed in; "": a client certificate is enough

function stored(act) {
  try {
    return act() ?? null;
  } catch {
    return null; // a browser that stores nothing; the page remembers the token until it is left
  }
}

const isSignedIn = () => token !== null;
const bearer = (given) => (given ? { Authorization: `Bearer ${given}` } : {});
// What changes are sent with, and reads of what only some may read. Predictions have the key alone.
const changer = () => bearer(token);
const reader = () => ({ ...credentials(), ...changer() });

function showAccount() {
  show("account", isSignedIn() ? "Sign out" : "Sign in");
}

function keepToken(given) {
  token = given;
  stored(() => (given === null ? sessionStorage.removeItem(KEPT) : sessionStorage.setItem(KEPT, given)));
  showAccount();
  listenAnew(); // by these credentials
}

// Ask for a token. True once the gateway has taken one, false if the user cancels.
function signIn() {
  const dialog = byId("sign-in");
  byId("token").value = "";
  show("sign-in-problem", "");
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(isSignedIn()), { once: true }));
}

async function refusal(answer) {
  const { code, detail, hint } = await answer.json().catch(() => ({}));
  if (code === "credentials_wrong") return "This token is wrong. `torchgate token` prints the right one.";
  return [detail ?? `Status ${answer.status}`, hint].filter(Boolean).join(" ");
}

async function tryToken(given) {
  try {
    const answer = await fetch("status/sign-in", { headers: bearer(given) });
    if (!answer.ok) return await refusal(answer);
  } catch (error) {
    return `The token was not sent: ${error.message}`;
  }
  keepToken(given);
  return "";
}

on(byId("sign-in-form"), "submit", async (event) => {
  event.preventDefault();
  show("sign-in-problem", "");
  const problem = await tryToken(byId("token").value.trim());
  show("sign-in-problem", problem);
  if (problem) byId("token").select();
  else byId("sign-in").close();
});
on(byId("account"), "click", () => (isSignedIn() ? keepToken(null) : signIn()));
for (const button of document.querySelectorAll("[data-close]")) on(button, "click", () => button.closest("dialog").close());
showAccount();
