// The event log: changes and refusals, the newest first.
const MOST_EVENTS = 15;

function clock(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

// What a change made of the traffic; empty where it left it alone.
function trafficAfter({ before, after }) {
  if (!after?.weights || JSON.stringify(before?.weights) === JSON.stringify(after.weights)) return "";
  return `traffic: ${weightsText(after.weights)}`;
}

function eventLine(event) {
  const isRefused = event.outcome === "refused";
  const isOpen = event.gateway !== ""; // only readers get the details
  const detail = event.detail && !isOpen ? "details after signing in" : event.detail;
  const reason = event.reason ? `“${event.reason}”` : "";
  const texts = [reason, detail, trafficAfter(event)].filter(Boolean).join(" · ");
  return make("li", isRefused ? { class: "refused" } : {},
    make("time", { datetime: event.time, title: event.time }, clock(event.time)),
    make("span", { class: "what" }, make("b", {}, event.action.replaceAll("_", " ")), ` ${event.model} ${event.subject}`),
    make("span", { class: "who" }, isRefused ? make("span", { class: "tag hot" }, "refused") : "", ` ${event.actor}`),
    make("span", { class: "details" }, texts));
}

function showEvents(events) {
  const newest = events.sort((a, b) => (a.time < b.time ? 1 : -1)).slice(0, MOST_EVENTS);
  refill(byId("events"), newest, () => newest.map(eventLine));
  const refused = newest.filter(({ outcome }) => outcome === "refused").length;
  show("events-key", newest.length ? `last ${newest.length}, ${refused} refused` : "none yet");
}
