// The last request as a command to copy. A key is never copied: the command names a variable of the environment.
const PAGE = new URL(".", window.location.href).href;
let repeated = null; // the request that the answer is of

function asCurl({ model, version, top_k, file, type }) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const query = new URLSearchParams({ ...(model && { model }), ...(version && { version }), top_k });
  const key = byId("key").value ? ' -H "X-API-Key: $GATEWAY_API_KEY"' : "";
  return `curl --data-binary ${quote(`@${file}`)} -H ${quote(`Content-Type: ${type}`)}${key} ${quote(`${PAGE}predict?${query}`)}`;
}

function asPython({ model, version, top_k, file }) {
  const hasKey = Boolean(byId("key").value);
  const given = Object.entries({ model, version, top_k }).filter(([, value]) => value !== undefined);
  const passed = [JSON.stringify(file), ...given.map(([name, value]) => `${name}=${JSON.stringify(value)}`)];
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from torchgate_client import Client",
    "",
    `gateway = Client(${JSON.stringify(PAGE)}${hasKey ? ', key=os.environ["GATEWAY_API_KEY"]' : ""})`,
    `answer = gateway.predict(${passed.join(", ")})`,
    "print(answer.label, answer.probability)",
    "",
  ].join("\n");
}

function offerCommands(request) {
  repeated = request;
  byId("command").hidden = true;
  show("copied", "");
}

async function copy(text) {
  const shown = byId("command");
  try {
    await navigator.clipboard.writeText(text); // there is no clipboard without HTTPS, except on this machine
    shown.hidden = true;
    show("copied", "Copied");
  } catch {
    shown.value = text;
    shown.hidden = false;
    shown.select();
    shown.focus();
    show("copied", "The browser allows no copying here. Copy the selected text.");
  }
}

on(byId("copy-curl"), "click", () => copy(asCurl(repeated)));
on(byId("copy-python"), "click", () => copy(asPython(repeated)));
