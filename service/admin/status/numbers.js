// Numbers as people read them: three digits, with what they are of beside them.
const MINUS = "–";

function short(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return MINUS;
  const size = Math.abs(number);
  if (size >= 999_500) return `${(number / 1e6).toFixed(1)}M`;
  if (size >= 9_995) return `${(number / 1e3).toFixed(1)}k`;
  if (size >= 99.5 || Number.isInteger(number)) return Math.round(number).toLocaleString("en");
  return number.toFixed(size >= 9.95 ? 1 : 2);
}

function percent(share) {
  const number = share * 100;
  return number === 0 ? "0" : number < 0.1 ? "<0.1" : number < 10 ? number.toFixed(1) : Math.round(number).toString();
}

function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86400, seconds / 3600, seconds / 60].map(Math.floor);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.max(Math.floor(seconds), 0)} s`;
}

const milliseconds = (ms) => (ms >= 1000 ? `${short(ms / 1000)} s` : `${short(ms)} ms`);
const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MB`;
const sum = (items, read) => items.reduce((all, each) => all + (read(each) ?? 0), 0);
const total = (numbers) => sum(Object.values(numbers), (each) => each);
const byId = (id) => document.getElementById(id);
const on = (element, events, act) => events.split(" ").forEach((event) => element.addEventListener(event, act));

function show(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, { style = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== false) element.setAttribute(name, value);
  Object.assign(element.style, style); // the page's policy forbids style attributes
  element.append(...children);
  return element;
}

// Fill an element anew only where what it shows has changed, so that focus, selection and clicks survive.
const shownIn = new WeakMap();
function refill(element, data, build) {
  const text = JSON.stringify(data);
  if (shownIn.get(element) === text) return;
  shownIn.set(element, text);
  element.replaceChildren(...build());
}

const bar = (share, background = "") => make("i", { style: { width: `${Math.min(share, 1) * 100}%`, background } });
