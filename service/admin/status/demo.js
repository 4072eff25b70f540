// The corner to try the gateway in: a pad to draw on, a place for an image, and the answer.
const pad = byId("pad");
const STEP = 1 / 28; // of the pad, for one press of an arrow key
const PAUSE_MS = 300; // after a stroke, before the drawing is sent by itself
const NUM_CLASSES = 10;

const drawing = { strokes: [], pen: [0.5, 0.5], isDown: false, isKeyboard: false, file: null };
let known = new Map(); // model -> the shape of its input
let asking = null;
let timer = 0;

function paint() {
  const scale = window.devicePixelRatio || 1;
  const side = Math.round(pad.clientWidth * scale) || 172;
  if (pad.width !== side) pad.width = pad.height = side;
  const context = pad.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, side, side);
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

function forgetImage() {
  if (drawing.file === null) return;
  URL.revokeObjectURL(byId("picked").src);
  byId("picked").hidden = true;
  byId("file").value = "";
  drawing.file = null;
}

function clear() {
  clearTimeout(timer);
  asking?.abort();
  forgetImage();
  Object.assign(drawing, { strokes: [], isDown: false });
  byId("sent").getContext("2d").clearRect(0, 0, 999, 999);
  byId("classes").replaceChildren();
  say("", "");
  byId("answer-meta").textContent = "\u00a0";
  paint();
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

function say(strong, text, kind = "") {
  byId("verdict").dataset.tone = kind;
  byId("verdict").replaceChildren(...(strong ? [make("b", {}, strong), text] : [text || "\u00a0"]));
}

const at = (event) => {
  const box = pad.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
};

pad.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  if (drawing.file) clear();
  pad.setPointerCapture(event.pointerId);
  clearTimeout(timer);
  drawing.isKeyboard = false;
  drawing.isDown = true;
  drawing.strokes.push([at(event)]);
  paint();
});
pad.addEventListener("pointermove", (event) => {
  if (!drawing.isDown || drawing.isKeyboard) return;
  const moves = event.getCoalescedEvents?.() ?? [];
  drawing.strokes.at(-1).push(...(moves.length ? moves : [event]).map(at));
  paint();
});
for (const name of ["pointerup", "pointercancel"]) {
  pad.addEventListener(name, () => {
    if (!drawing.isDown || drawing.isKeyboard) return;
    drawing.isDown = false;
    askSoon();
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
pad.addEventListener("keydown", (event) => {
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
pad.addEventListener("blur", () => {
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
for (const name of ["dragenter", "dragover"]) {
  easel.addEventListener(name, (event) => {
    event.preventDefault();
    easel.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) easel.addEventListener(name, () => easel.classList.remove("over"));
for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault()); // beside it
easel.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
document.addEventListener("paste", (event) => take([...event.clipboardData.files][0]));
byId("file").addEventListener("change", (event) => take(event.target.files[0]));
byId("ask").addEventListener("click", () => ask());
byId("clear").addEventListener("click", clear);
byId("target").addEventListener("change", () => (drawing.strokes.length || drawing.file) && ask());
byId("key-row").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("key-row").hidden = document.body.dataset.asksForKey !== "true";
new ResizeObserver(paint).observe(pad);

async function imageToSend(model) {
  if (drawing.file) return drawing.file;
  const { width, height } = known.get(model) ?? { width: 28, height: 28 };
  rasterise(byId("sent"), drawing.strokes, width, height);
  return new Promise((resolve) => byId("sent").toBlob(resolve, "image/png"));
}

async function ask() {
  clearTimeout(timer);
  if (!drawing.file && !drawing.strokes.length) return say("", "Draw something first, or choose an image.");
  asking?.abort();
  const { signal } = (asking = new AbortController());
  try {
    const query = new URLSearchParams(JSON.parse(byId("target").value || "{}"));
    query.set("top_k", NUM_CLASSES);
    const body = await imageToSend(query.get("model"));
    const headers = { "Content-Type": body.type || "application/octet-stream" };
    if (byId("key").value) headers["X-API-Key"] = byId("key").value;
    const started = performance.now();
    const answer = await fetch(`predict?${query}`, { method: "POST", body, headers, signal });
    const document_ = await answer.json();
    if (!signal.aborted) tell(answer, document_, performance.now() - started);
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("classes").replaceChildren();
    byId("answer-meta").textContent = "\u00a0";
    say("", `The gateway was not reached: ${error.message}`, "bad");
  }
}

function tell(answer, told, elapsed) {
  if (!answer.ok) {
    byId("classes").replaceChildren();
    byId("answer-meta").textContent = "\u00a0";
    return say("", told.detail ?? `Status ${answer.status}`, "bad");
  }
  const [prediction] = told.predictions;
  say(prediction.label, `${percent(prediction.probability)} %`);
  byId("classes").replaceChildren(...prediction.top_k.map(({ label, probability }) => {
    const track = make("div", { class: "track" });
    track.append(wide("i", probability));
    return make("li", {}, make("span", { title: label }, label), track, make("em", {}, `${percent(probability)} %`));
  }));
  const times = Object.fromEntries([...(answer.headers.get("server-timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]));
  const parts = [`${told.model} ${told.version}`, `${short(elapsed)} ms`];
  if (times.compute !== undefined) parts.push(`queue ${short(times.queue)}, compute ${short(times.compute)}`);
  parts.push(`batch of ${answer.headers.get("x-batch-size")}`);
  byId("answer-meta").textContent = parts.join(" · ");
}

// Offer what is ready, and learn what shape of image each model takes.
async function offer(versions) {
  const select = byId("target");
  const ready = versions.filter(({ state }) => state === "ready");
  const models = [...new Set(ready.map(({ model }) => model))];
  const options = models.flatMap((model) => [
    [{ model }, `${model}, as its traffic is split`],
    ...ready.filter((version) => version.model === model).map(({ version }) => [{ model, version }, `${model} ${version}`]),
  ]).map(([value, text]) => [JSON.stringify(value), text]);
  const offered = JSON.stringify(options);
  if (select.dataset.offered === offered) return;
  select.dataset.offered = offered;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
  try {
    const listed = await (await fetch("models")).json();
    known = new Map(listed.models.flatMap(({ model, versions: [first] }) => (first?.contract.input ? [[model, first.contract.input]] : [])));
  } catch {
    delete select.dataset.offered; // with the next look again
  }
}
