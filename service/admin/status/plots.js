// Plots over the last minutes. All have one x axis: seconds before now, which is at the right.
const LONGEST_SECONDS = 300;
const WIDTH = 300; // of every plot, in units of its own
const GAP_SECONDS = 3.5; // what is further apart is not joined
const SVG = "http://www.w3.org/2000/svg";

let span = 60; // seconds from the left edge to now; grows with what there is to show
const xOf = (point, now) => WIDTH * (1 - (now - point.time) / span);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function prepare(id, height) {
  const svg = byId(id);
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren();
  return svg;
}

function path(svg, kind, d, fill = "") {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", kind);
  element.setAttribute("d", d);
  element.style.fill = fill;
  svg.append(element);
}

// Points in runs without gaps, each [x, low, high]; `read` returns [low, high], or null where there is nothing to plot.
function runsOf(points, now, read) {
  const runs = [];
  let last = -Infinity;
  for (const point of points) {
    const band = read(point);
    if (band !== null && point.time - last > GAP_SECONDS) runs.push([]);
    if (band !== null) runs.at(-1).push([xOf(point, now), ...band]);
    last = band === null ? -Infinity : point.time;
  }
  return runs.map((run) => (run.length > 1 ? run : [run[0], [run[0][0] + 0.8, ...run[0].slice(1)]])); // a lone one is seen
}

const line = (run, y, at) => run.map((each) => `${each[0].toFixed(1)},${y(each[at]).toFixed(2)}`).join("L");

// Lines over one another, the last with its area filled; `bound` is a dashed line.
function drawLines(id, points, now, reads, { bound = null, least = 1 } = {}) {
  const height = 40;
  const svg = prepare(id, height);
  const most = Math.max(least, bound ?? 0, ...points.flatMap((point) => reads.map(({ read }) => read(point) ?? 0)));
  const y = (value) => height - 1.5 - (value / most) * (height - 5);
  for (const { read, kind = "", isFilled = false } of reads) {
    const band = (point) => (read(point) === null ? null : [0, read(point)]);
    for (const run of runsOf(points, now, band)) {
      const d = line(run, y, 2);
      if (isFilled) path(svg, "area", `M${run[0][0].toFixed(1)},${height}L${d}L${run.at(-1)[0].toFixed(1)},${height}Z`);
      path(svg, `trace ${kind}`, `M${d}`);
    }
  }
  if (bound !== null) path(svg, "bound", `M0,${y(bound).toFixed(2)}H${WIDTH}`);
}

// Areas on top of one another: [{read, fill}]; returns the top of the scale.
function drawStack(id, points, now, layers, least = 1, height = 100) {
  const svg = prepare(id, height);
  const below = (point, i) => sum(layers.slice(0, i), ({ read }) => read(point));
  const most = Math.max(least, ...points.map((point) => below(point, layers.length)));
  const y = (value) => height - (value / most) * (height - 2);
  layers.forEach(({ fill }, i) => {
    for (const run of runsOf(points, now, (point) => [below(point, i), below(point, i + 1)])) {
      path(svg, "band", `M${line(run, y, 2)}L${line([...run].reverse(), y, 1)}Z`, fill);
    }
  });
  return most;
}

const channels = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));

function mixed([low, middle, high], share) {
  const [from, to, part] = share < 0.5 ? [low, middle, share * 2] : [middle, high, share * 2 - 1];
  return `rgb(${from.map((each, i) => Math.round(each + (to[i] - each) * part)).join(" ")})`;
}

// A heat strip: time from left to right, a row for each bucket, the more requests the stronger.
function drawHeat(canvas, points, now, edges, objectiveSeconds) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)]; // which clears it
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const above = edges.findIndex((edge) => edge > objectiveSeconds); // the row that the objective lies in
  const top = Math.max(above, ...points.map(({ heat }) => heat.findLastIndex((count) => count))) + 1;
  const most = Math.max(1, ...points.flatMap(({ heat }) => heat));
  const numRows = Math.max(Math.min(top, edges.length + 1), 6);
  const [left, rowHeight] = [56, height / numRows];
  const bottomOf = (row) => height - row * rowHeight;
  const shades = ["--heat-low", "--heat-mid", "--heat-high"].map((name) => channels(colour(name)));
  const second = (width - left) / span;
  context.fillStyle = colour("--soft");
  for (let row = 0; row < numRows; row++) context.fillRect(left, bottomOf(row + 1), width - left, rowHeight - 1);
  for (const point of points) {
    const x = Math.max(width - (now - point.time + 1) * second, left);
    point.heat.forEach((count, row) => {
      if (!count) return;
      context.fillStyle = mixed(shades, Math.log1p(count) / Math.log1p(most));
      context.fillRect(x, bottomOf(row + 1), second + 0.6, rowHeight - 1);
    });
  }
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = colour("--muted");
  for (let row = 0; row < numRows - 1; row += Math.ceil(15 / rowHeight)) {
    const y = bottomOf(row + 1) - 0.5;
    if (y > 8) context.fillText(edges[row] < 1 ? `${edges[row] * 1000} ms` : `${edges[row]} s`, left - 8, y);
  }
  if (above < 0) return;
  // Between two edges the scale is taken to be even, as it is for quantiles.
  const below = above ? edges[above - 1] : 0;
  const y = bottomOf(above + (objectiveSeconds - below) / (edges[above] - below)) - 0.5;
  context.strokeStyle = colour("--warn");
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(width, y);
  context.stroke();
}
