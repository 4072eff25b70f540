// The events: what was before, then a look a second. A browser asks again by itself when the stream ends.
const LATE_MS = 4000;
const AGAIN_MS = 5000;
let points = [];
let latest = null;
let late = 0;

function keep(more) {
  const last = points.at(-1)?.time ?? 0;
  points.push(...more.filter((point) => point.time > last));
  points = points.filter((point) => point.time > points.at(-1).time - LONGEST_SECONDS);
}

function draw() {
  if (latest && !document.hidden) requestAnimationFrame(() => render(latest, points));
}

function listen() {
  const source = new EventSource("status/events");
  on(source, "history", (event) => keep(JSON.parse(event.data)));
  on(source, "look", (event) => {
    const { point, now } = JSON.parse(event.data);
    keep([point]);
    latest = now;
    clearTimeout(late);
    late = setTimeout(() => setState("lost", "No news from the gateway; trying again"), LATE_MS);
    offer(now.versions);
    draw();
  });
  on(source, "error", async () => {
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(listen, AGAIN_MS); // refused, and the browser gives up
    // An event source keeps the answer to itself; the reason is in the answer to the same question.
    const told = await fetch("status/events")
      .then((answer) => (answer.ok ? answer.body.cancel() : answer.json()))
      .catch(() => null);
    setState("lost", told?.detail ?? "No connection; trying again");
  });
}

on(document, "visibilitychange", draw);
on(window, "resize", draw);
on(window.matchMedia("(prefers-color-scheme: dark)"), "change", draw);
listen();
