weightsText(after.weights)// The event log: changes and refusals, the newest first.
weightsText(after.weights)const MOST_EVENTS = 15;
weightsText(after.weights)
weightsText(after.weights)function clock(time) {
weightsText(after.weights)  const date = new Date(time);
weightsText(after.weights)  const isToday = date.toDateString() === new Date().toDateString();
weightsText(after.weights)  return isToday ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
weightsText(after.weights)}
weightsText(after.weights)
weightsText(after.weights)// What a change made of the traffic; empty where it left it alone.
weightsText(after.weights)function trafficAfter({ before, after }) {
weightsText(after.weights)  if (!after?.weights || JSON.stringify(before?.weights) === JSON.stringify(after.weights)) return "";
weightsText(after.weights)  return `traffic: ${shares(after.weights) || "none"}`;
weightsText(after.weights)}
weightsText(after.weights)
weightsText(after.weights)function eventLine(event) {
weightsText(after.weights)  const isRefused = event.outcome === "refused";
weightsText(after.weights)  const isOpen = event.gateway !== ""; // only readers get the details
weightsText(after.weights)  const detail = event.detail && !isOpen ? "details after signing in" : event.detail;
weightsText(after.weights)  const reason = event.reason ? `“${event.reason}”` : "";
weightsText(after.weights)  const texts = [reason, detail, trafficAfter(event)].filter(Boolean).join(" · ");
weightsText(after.weights)  return make("li", isRefused ? { class: "refused" } : {},
weightsText(after.weights)    make("time", { datetime: event.time, title: event.time }, clock(event.time)),
weightsText(after.weights)    make("span", { class: "what" }, make("b", {}, event.action.replaceAll("_", " ")), ` ${event.model} ${event.subject}`),
weightsText(after.weights)    make("span", { class: "who" }, isRefused ? make("span", { class: "tag hot" }, "refused") : "", ` ${event.actor}`),
weightsText(after.weights)    make("span", { class: "details" }, texts));
weightsText(after.weights)}
weightsText(after.weights)
weightsText(after.weights)function showEvents(events) {
weightsText(after.weights)  const newest = events.sort((a, b) => (a.time < b.time ? 1 : -1)).slice(0, MOST_EVENTS);
weightsText(after.weights)  refill(byId("events"), newest, () => newest.map(eventLine));
weightsText(after.weights)  const refused = newest.filter(({ outcome }) => outcome === "refused").length;
weightsText(after.weights)  show("events-key", newest.length ? `last ${newest.length}, ${refused} refused` : "none yet");
weightsText(after.weights)}
