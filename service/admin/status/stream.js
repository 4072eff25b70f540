// The events: what was before, then a look a second. They are read by fetch, since an EventSource sends no key.
const LATE_MS = 4000;
const AGAIN_MS = 5000;
const SOON_MS = 1000;
let points = [];
let latest = null;
let late = 0;
let again = 0; // when the next connection is made; 0 while there is one

function keep(more) {
  const last = points.at(-1)?.time ?? 0;
  points.push(...more.filter((point) => point.time > last));
  points = points.filter((point) => point.time > points.at(-1).time - LONGEST_SECONDS);
}

function draw() {
  if (latest && !document.hidden) requestAnimationFrame(() => render(latest, points));
}

const TAKE = {
  history: keep,
  look({ point, now }) {
    keep([point]);
    latest = now;
    clearTimeout(late);
    late = setTimeout(() => setState("lost", "No news from the gateway; trying again"), LATE_MS);
    offer(now.versions);
    draw();
  },
};

async function follow(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      TAKE[kind]?.(JSON.parse(data));
    }
  }
}

async function listen() {
  again = 0;
  let pause = AGAIN_MS;
  try {
    const answer = await fetch("status/events", { headers: credentials() });
    if (answer.ok) {
      await follow(answer.body);
      pause = SOON_MS; // a stream ends after some minutes
    } else {
      setState("lost", (await answer.json()).detail);
    }
  } catch {
    setState("lost", "No connection; trying again");
  }
  again = setTimeout(listen, pause);
}

on(byId("key"), "change", () => {
  if (!again) return;
  clearTimeout(again);
  listen();
});
on(document, "visibilitychange", draw);
on(window, "resize", draw);
on(window.matchMedia("(prefers-color-scheme: dark)"), "change", draw);
listen();
