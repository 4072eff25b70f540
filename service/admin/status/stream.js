// The events: what was before, then a look a second. A browser asks again by itself when the stream ends.
const LATE_MS = 4000;
const AGAIN_MS = 5000;
const points = [];
let seen = 0;
let latest = null;
let source = null;

function keep(more) {
  const last = points.at(-1)?.time ?? 0;
  points.push(...more.filter((point) => point.time > last));
  const first = points.findIndex((point) => point.time > (points.at(-1)?.time ?? 0) - LONGEST_SECONDS);
  points.splice(0, Math.max(first, 0));
}

function draw() {
  if (latest && !document.hidden) requestAnimationFrame(() => render(latest, points));
}

// An event source keeps the answer to itself; the reason is in the answer to the same question.
async function whyRefused() {
  try {
    const answer = await fetch("status/events");
    if (!answer.ok) return (await answer.json()).detail;
    await answer.body.cancel();
  } catch {
    // nobody there, or somebody in front who answers otherwise
  }
  return "No connection; trying again";
}

function listen() {
  source = new EventSource("status/events");
  source.addEventListener("history", (event) => keep(JSON.parse(event.data)));
  source.addEventListener("look", (event) => {
    const { point, now } = JSON.parse(event.data);
    keep([point]);
    latest = now;
    seen = performance.now();
    offer(now.versions);
    draw();
  });
  source.addEventListener("error", async () => {
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(listen, AGAIN_MS); // refused, and the browser gives up
    setState("lost", await whyRefused());
  });
}

setInterval(() => {
  if (latest && performance.now() - seen > LATE_MS) setState("lost", "No news from the gateway; trying again");
}, 1000);
document.addEventListener("visibilitychange", draw);
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
listen();
