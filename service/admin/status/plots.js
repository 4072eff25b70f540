// Plots over the last minutes. All have one x axis: seconds before now, which is at the right.
const LONGEST_SECONDS = 300;
const WIDTH = 300; // of every plot, in units of its own
const GAP_SECONDS = 3.5; // what is further apart is not joined
const SVG = "http://www.w3.org/2000/svg";

let span = 60; // seconds from the left edge to now; grows with what there is to show
const xOf = (point, now) => WIDTH * (1 - (now - point.time) / span);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function prepare(svg, height) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren();
}

function path(svg, kind, d, fill) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", kind);
  element.setAttribute("d", d);
  if (fill) element.style.fill = fill;
  svg.append(element);
}

// Points in runs without gaps, each [x, low, high]; `read` returns null where there is nothing to plot.
function runsOf(points, now, read) {
  const runs = [];
  let last = null;
  for (const point of points) {
    const read_value = read(point);
    if (read_value === null || read_value === undefined) {
      last = null;
      continue;
    }
    const [low, high] = Array.isArray(read_value) ? read_value : [0, read_value];
    if (last === null || point.time - last > GAP_SECONDS) runs.push([]);
    runs.at(-1).push([xOf(point, now), low, high]);
    last = point.time;
  }
  return runs;
}

const line = (run, y, at) => run.map((each) => `${each[0].toFixed(1)},${y(each[at]).toFixed(2)}`).join("L");
const widened = (run) => (run.length > 1 ? run : [run[0], [run[0][0] + 0.8, run[0][1], run[0][2]]]);

// Lines over one another, the last with its area filled; `bound` is a dashed line.
function drawLines(svg, points, now, reads, { bound = null, least = 1 } = {}) {
  const height = 40;
  prepare(svg, height);
  let most = Math.max(least, bound ?? 0);
  for (const point of points) for (const { read } of reads) most = Math.max(most, read(point) ?? 0);
  const y = (value) => height - 1.5 - (value / most) * (height - 5);
  for (const { read, kind = "", area = false } of reads) {
    for (const run of runsOf(points, now, read).map(widened)) {
      const d = line(run, y, 2);
      if (area) path(svg, "area", `M${run[0][0].toFixed(1)},${height}L${d}L${run.at(-1)[0].toFixed(1)},${height}Z`);
      path(svg, `trace ${kind}`, `M${d}`);
    }
  }
  if (bound !== null) path(svg, "bound", `M0,${y(bound).toFixed(2)}H${WIDTH}`);
}

// Areas on top of one another: [{read, fill}]; returns the top of the scale.
function drawStack(svg, points, now, layers, least = 1, height = 100) {
  prepare(svg, height);
  const sums = points.map((point) => layers.reduce((sum, { read }) => sum + read(point), 0));
  const most = Math.max(least, ...sums);
  const y = (value) => height - (value / most) * (height - 2);
  layers.forEach(({ fill }, i) => {
    const band = (point) => {
      const below = layers.slice(0, i).reduce((sum, { read }) => sum + read(point), 0);
      return [below, below + layers[i].read(point)];
    };
    for (const run of runsOf(points, now, band).map(widened)) {
      path(svg, "band", `M${line(run, y, 2)}L${line([...run].reverse(), y, 1)}Z`, fill);
    }
  });
  return most;
}

function mixed(low, middle, high, share) {
  const [from, to, part] = share < 0.5 ? [low, middle, share * 2] : [middle, high, share * 2 - 1];
  return `rgb(${from.map((each, i) => Math.round(each + (to[i] - each) * part)).join(" ")})`;
}

const channels = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));

// A heat strip: time from left to right, a row for each bucket, the more requests the stronger.
function drawHeat(canvas, points, now, edges, objectiveSeconds) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  let top = edges.findIndex((edge) => edge >= objectiveSeconds * 1.001) + 1;
  let most = 1;
  for (const { heat } of points) {
    heat.forEach((count, row) => {
      if (count) [top, most] = [Math.max(top, row + 1), Math.max(most, count)];
    });
  }
  const numRows = Math.max(Math.min(top, edges.length + 1), 6);
  const [left, rowHeight] = [56, height / numRows];
  const shades = ["--heat-low", "--heat-mid", "--heat-high"].map((name) => channels(colour(name)));
  const second = (width - left) / span;
  context.fillStyle = colour("--soft");
  for (let row = 0; row < numRows; row++) context.fillRect(left, height - (row + 1) * rowHeight, width - left, rowHeight - 1);
  for (const point of points) {
    const x = width - (now - point.time + 1) * second;
    if (x < left - second) continue;
    point.heat.forEach((count, row) => {
      if (!count) return;
      context.fillStyle = mixed(...shades, Math.log1p(count) / Math.log1p(most));
      context.fillRect(Math.max(x, left), height - (row + 1) * rowHeight, second + 0.6, rowHeight - 1);
    });
  }
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = colour("--muted");
  const every = Math.ceil(15 / rowHeight);
  for (let row = 0; row < numRows - 1; row += every) {
    const y = height - (row + 1) * rowHeight - 0.5;
    if (y > 8) context.fillText(edges[row] < 1 ? `${edges[row] * 1000} ms` : `${edges[row]} s`, left - 8, y);
  }
  // Between two edges the scale is taken to be even, as it is for quantiles.
  const above = edges.findIndex((edge) => edge >= objectiveSeconds);
  if (above >= 0) {
    const below = above ? edges[above - 1] : 0;
    const y = height - (above + (objectiveSeconds - below) / (edges[above] - below)) * rowHeight - 0.5;
    context.strokeStyle = colour("--warn");
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(width, y);
    context.stroke();
    context.setLineDash([]);
  }
}
