// The events: what was before, then a look a second. They are read by fetch, since an EventSource sends no key.
const LATE_MS = 4000;
const AGAIN_MS = 5000;
const SOON_MS = 1000;
let points = [];
let latest = null;
let late = 0;
let again = 0; // when the next connection is made; 0 while there is one
let earlier = []; // what a new stream begins with, until it is known whose figures they are
let stream = new AbortController();

const processOf = ({ gateway }) => gateway.name.split("-").at(-1); // readers see its host, too

function keep(more) {
  const last = points.at(-1)?.time ?? 0;
  points.push(...more.filter((point) => point.time > last));
  points = points.filter((point) => point.time > points.at(-1).time - LONGEST_SECONDS);
}

function draw() {
  if (latest && !document.hidden) requestAnimationFrame(() => render(latest, points));
}

const TAKE = {
  history(before) {
    earlier = before;
  },
  look({ point, now }) {
    if (latest && processOf(latest) !== processOf(now)) points = []; // another process answers: its figures alone
    keep([...earlier, point]);
    [earlier, latest] = [[], now];
    clearTimeout(late);
    late = setTimeout(() => setState("lost", "No news from the gateway; trying again"), LATE_MS);
    offer(now.versions);
    draw();
    refreshDetails(now);
  },
};

async function follow(body) {
  const incoming = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await incoming.read();
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
  const { signal } = (stream = new AbortController());
  let pause = AGAIN_MS;
  try {
    const answer = await fetch("status/events", { headers: reader(), signal });
    if (answer.ok) {
      await follow(answer.body);
      pause = SOON_MS; // a stream ends after some minutes
    } else {
      setState("lost", (await answer.json()).detail);
    }
  } catch {
    if (signal.aborted) return;
    setState("lost", "No connection; trying again");
  }
  again = setTimeout(listen, pause);
}

// Connect by other credentials: others see more, or less.
function listenAnew() {
  clearTimeout(again);
  stream.abort();
  refreshSoon();
  listen();
}

on(byId("key"), "change", () => again && listenAnew());
on(document, "visibilitychange", draw);
on(window, "resize", draw);
on(window.matchMedia("(prefers-color-scheme: dark)"), "change", draw);
listen();
