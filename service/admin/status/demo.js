// The corner to try the gateway in: a pad to draw on, a place for an image, and the answer.
const pad = byId("pad");
const sent = byId("sent").getContext("2d", { willReadFrequently: true });
const STEP = 1 / 28; // of the pad, for one press of an arrow key
const PAUSE_MS = 300; // after a stroke, before the drawing is sent by itself
const NUM_CLASSES = 10;

const drawing = { strokes: [], pen: [0.5, 0.5], isDown: false, isKeyboard: false, file: null };
let asking = null;
let timer = 0;

function paint() {
  const scale = window.devicePixelRatio || 1;
  const side = Math.round(pad.clientWidth * scale) || 172;
  pad.width = pad.height = side; // which clears it
  const context = pad.getContext("2d");
  context.scale(side, side);
  trace(context, drawing.strokes, PEN_SHARE * 1.15);
  if (drawing.isKeyboard) {
    const [x, y] = drawing.pen;
    context.beginPath();
    context.arc(x, y, 0.04, 0, 2 * Math.PI);
    context.lineWidth = 0.012;
    context.strokeStyle = drawing.isDown ? "#ffb84d" : "#7fd0ff";
    context.stroke();
  }
  byId("pad-hint").hidden = drawing.strokes.length > 0 || drawing.file !== null || drawing.isKeyboard;
}

function clear() {
  clearTimeout(timer);
  asking?.abort();
  URL.revokeObjectURL(byId("picked").src);
  byId("picked").hidden = true;
  byId("file").value = "";
  Object.assign(drawing, { strokes: [], isDown: false, file: null });
  sent.clearRect(0, 0, sent.canvas.width, sent.canvas.height);
  say("", "");
  paint();
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

// Show an answer, or why there is none.
function say(strong, text, { tone = "", classes = [], meta = "\u00a0" } = {}) {
  byId("verdict").dataset.tone = tone;
  byId("verdict").replaceChildren(...(strong ? [make("b", {}, strong), text] : [text || "\u00a0"]));
  byId("classes").replaceChildren(...classes);
  byId("answer-meta").textContent = meta;
  byId("reply").hidden = true; // until there is an answer
}

const at = (event) => {
  const box = pad.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
};

on(pad, "pointerdown", (event) => {
  if (event.button) return;
  if (drawing.file) clear();
  pad.setPointerCapture(event.pointerId);
  clearTimeout(timer);
  Object.assign(drawing, { isKeyboard: false, isDown: true });
  drawing.strokes.push([at(event)]);
  paint();
});
on(pad, "pointermove", (event) => {
  if (!drawing.isDown || drawing.isKeyboard) return;
  const moves = event.getCoalescedEvents?.() ?? [];
  drawing.strokes.at(-1).push(...(moves.length ? moves : [event]).map(at));
  paint();
});
on(pad, "pointerup pointercancel", () => {
  if (!drawing.isDown || drawing.isKeyboard) return;
  drawing.isDown = false;
  askSoon();
});

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
on(pad, "keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in ARROWS) {
    drawing.isKeyboard = true;
    drawing.pen = drawing.pen.map((each, i) => Math.min(Math.max(each + ARROWS[event.key][i] * STEP, 0.04), 0.96));
    if (drawing.isDown) drawing.strokes.at(-1).push([...drawing.pen]);
  } else if (event.key === " ") {
    if (drawing.file) clear();
    drawing.isKeyboard = true;
    drawing.isDown = !drawing.isDown;
    if (drawing.isDown) drawing.strokes.push([[...drawing.pen]]);
    else askSoon();
  } else if (event.key === "Enter") {
    drawing.isDown = false;
    ask();
  } else if (event.key === "Backspace" || event.key === "Delete") {
    clear();
  } else if (/^[0-9]$/.test(event.key)) {
    clear();
    drawing.strokes = DIGITS[Number(event.key)].map((stroke) => stroke.map((point) => [...point]));
    askSoon();
  } else {
    return;
  }
  event.preventDefault();
  paint();
});
on(pad, "blur", () => {
  if (drawing.isKeyboard) Object.assign(drawing, { isKeyboard: false, isDown: false });
  paint();
});

function take(file) {
  if (!file) return;
  clear();
  drawing.file = file;
  if (file.type.startsWith("image/")) {
    byId("picked").src = URL.createObjectURL(file);
    byId("picked").hidden = false;
  }
  paint();
  ask();
}

const easel = pad.parentElement;
on(document, "dragenter dragover drop", (event) => event.preventDefault()); // a browser would leave for the image
on(easel, "dragenter dragover", () => easel.classList.add("over"));
on(easel, "dragleave drop", () => easel.classList.remove("over"));
on(easel, "click", () => pad.hidden && byId("file").click());
on(easel, "drop", (event) => take(event.dataTransfer.files[0]));
on(document, "paste", (event) => take(event.clipboardData.files[0]));
on(byId("file"), "change", (event) => take(event.target.files[0]));
on(byId("ask"), "click", () => ask());
on(byId("clear"), "click", clear);
on(byId("target"), "change", () => {
  fitPad();
  if (drawing.strokes.length || drawing.file) ask();
});
on(byId("key-row"), "submit", (event) => {
  event.preventDefault();
  ask();
});
byId("key-row").hidden = document.body.dataset.asksForKey !== "true";
new ResizeObserver(paint).observe(pad);

async function drawn() {
  const { width, height } = inputOf(target()) ?? { width: 28, height: 28 };
  rasterise(sent, drawing.strokes, width, height);
  return new Promise((resolve) => sent.canvas.toBlob(resolve, "image/png"));
}

const credentials = () => (byId("key").value ? { "X-API-Key": byId("key").value } : {});

async function ask() {
  clearTimeout(timer);
  if (!drawing.file && !drawing.strokes.length) return say("", pad.hidden ? "Choose an image first." : "Draw something first, or choose an image.");
  asking?.abort();
  const { signal } = (asking = new AbortController());
  try {
    const chosen = target();
    const body = drawing.file ?? (await drawn());
    const request = { ...chosen, top_k: NUM_CLASSES, file: body.name ?? "digit.png", type: body.type || "application/octet-stream" };
    const query = new URLSearchParams({ ...chosen, top_k: NUM_CLASSES });
    const headers = { "Content-Type": request.type, ...credentials() };
    const started = performance.now();
    const answer = await fetch(`predict?${query}`, { method: "POST", body, headers, signal });
    const told = await answer.json();
    if (answer.ok) tell(answer, told, performance.now() - started, request);
    else say("", told.detail ?? `Status ${answer.status}`, { tone: "bad" });
  } catch (error) {
    if (error.name !== "AbortError") say("", `The gateway was not reached: ${error.message}`, { tone: "bad" });
  }
}

function tell(answer, told, elapsed, request) {
  const { model, version, predictions: [prediction] } = told;
  const classes = prediction.top_k.map(({ label, probability }) => {
    const track = make("div", { class: "stack" }, bar(probability));
    return make("li", {}, make("span", { title: label }, label), track, make("em", {}, `${percent(probability)} %`));
  });
  const timing = answer.headers.get("server-timing") ?? "";
  const times = Object.fromEntries([...timing.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]));
  const parts = [`${model} ${version}`, `${short(elapsed)} ms`];
  if (times.compute !== undefined) parts.push(`queue ${short(times.queue)}, compute ${short(times.compute)}`);
  parts.push(`batch of ${answer.headers.get("x-batch-size")}`);
  say(prediction.label, `${percent(prediction.probability)} %`, { classes, meta: parts.join(" · ") });
  byId("reply").hidden = false;
  offerCommands(request);
  askForFeedback(told);
}
