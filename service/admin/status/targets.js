// What answers the images of the corner: the choice of versions, and whether one can draw for it.
const MOST_DRAWN = 64; // pixels a side; a larger input is one of photographs

const target = () => JSON.parse(byId("target").value || "{}");

// The input of the chosen version or, where the traffic decides, of its model; undefined until one is known.
function inputOf({ model, version }, versions = latest?.versions ?? []) {
  const own = versions.filter((each) => each.model === model && each.input);
  return (own.find((each) => each.version === version) ?? own[0])?.input;
}

// Whether the pad suits an input: grey and small, as drawings of digits are. It does while none is known.
function isDrawable(input) {
  return !input || (input.channels === 1 && Math.max(input.width, input.height) <= MOST_DRAWN);
}

// Show the pad, or a field for images alone.
function fitPad(versions) {
  const draws = isDrawable(inputOf(target(), versions));
  if (byId("pad").hidden === !draws) return;
  if (!draws && drawing.strokes.length) clear();
  const skip = document.querySelector(".skip");
  skip.setAttribute("href", draws ? "#pad" : "#file");
  skip.textContent = draws ? "Skip to the drawing pad" : "Skip to the choice of an image";
  byId("pad").parentElement.toggleAttribute("data-drops", !draws);
  for (const id of ["pad", "pad-help", "pad-hint-draw", "sent"]) byId(id).hidden = !draws;
  for (const id of ["drop-help", "pad-hint-drop"]) byId(id).hidden = draws;
}

// Offer the versions that are ready, each model's traffic first.
function offer(versions) {
  const ready = versions.filter(({ state }) => state === "ready");
  const targets = Object.entries(Object.groupBy(ready, ({ model }) => model)).flatMap(([model, own]) => [
    [{ model }, `${model}, as its traffic is split`],
    ...own.map(({ name, version }) => [{ model, version }, name]),
  ]);
  const offered = JSON.stringify(targets);
  const select = byId("target");
  if (select.dataset.offered === offered) return fitPad(versions);
  select.dataset.offered = offered;
  const chosen = select.value;
  select.replaceChildren(...targets.map(([each, text]) => make("option", { value: JSON.stringify(each) }, text)));
  if ([...select.options].some(({ value }) => value === chosen)) select.value = chosen;
  fitPad(versions);
}
