// Drawings as strokes in a unit square, and how they become an image as MNIST's are: the ink is fitted into 20 of 28
// pixels and its centre of mass put into the middle, white on black (http://yann.lecun.com/exdb/mnist/).
const INK_SHARE = 20 / 28;
const PEN_SHARE = 2.5 / 28; // about as wide as MNIST's
const LEAST_INK = 0.12; // of the pad; a dot is not blown up to a blob

const arc = (x, y, rx, ry, from, to, steps = 18) =>
  Array.from({ length: steps + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / steps) * Math.PI) / 180;
    return [x + rx * Math.cos(angle), y + ry * Math.sin(angle)];
  });

// How a hand may write them; angles turn clockwise from the right, since y grows downwards.
const DIGITS = [
  [arc(0.5, 0.5, 0.2, 0.32, -90, 270, 30)],
  [[[0.54, 0.18], [0.46, 0.82]]],
  [[...arc(0.5, 0.36, 0.2, 0.18, 190, 380), [0.32, 0.8], [0.72, 0.78]]],
  [[...arc(0.48, 0.34, 0.18, 0.15, 200, 440), ...arc(0.48, 0.64, 0.2, 0.17, 280, 520)]],
  [[[0.36, 0.2], [0.32, 0.52], [0.68, 0.5]], [[0.64, 0.2], [0.6, 0.82]]],
  [[[0.66, 0.2], [0.4, 0.2], [0.37, 0.46], ...arc(0.47, 0.62, 0.2, 0.19, 240, 500)]],
  [[[0.6, 0.17], [0.42, 0.4], ...arc(0.5, 0.64, 0.17, 0.17, 190, 540, 26)]],
  [[[0.3, 0.22], [0.7, 0.2], [0.55, 0.5], [0.46, 0.82]]],
  [[...arc(0.5, 0.35, 0.15, 0.15, 80, -280, 24), ...arc(0.5, 0.66, 0.18, 0.17, -90, 270, 26)]],
  [[...arc(0.49, 0.36, 0.17, 0.17, 0, -360, 26), [0.64, 0.6], [0.56, 0.83]]],
];

function trace(context, strokes, width, place = ([x, y]) => [x, y]) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = "#fff";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach((point, i) => (i ? context.lineTo(...place(point)) : context.moveTo(...place(point))));
    if (stroke.length === 1) context.lineTo(...place(stroke[0])); // a dot
    context.stroke();
  }
}

// Draw the strokes into a canvas as they are sent: the ink fitted, and its centre of mass in the middle.
function rasterise(context, strokes, width, height) {
  Object.assign(context.canvas, { width, height });
  const side = Math.min(width, height);
  const pen = side * PEN_SHARE;
  const [[left, right], [top, bottom]] = [0, 1].map((i) => {
    const values = strokes.flat().map((point) => point[i]);
    return [Math.min(...values), Math.max(...values)];
  });
  const scale = (side * INK_SHARE - pen) / Math.max(right - left, bottom - top, LEAST_INK);
  const draw = (dx, dy) => {
    context.fillRect(0, 0, width, height);
    trace(context, strokes, pen, ([x, y]) => [
      width / 2 + dx + (x - (left + right) / 2) * scale,
      height / 2 + dy + (y - (top + bottom) / 2) * scale,
    ]);
  };
  draw(0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  let [mass, sumX, sumY] = [0, 0, 0];
  for (let i = 0; i < width * height; i++) {
    mass += data[i * 4];
    sumX += data[i * 4] * ((i % width) + 0.5);
    sumY += data[i * 4] * (Math.floor(i / width) + 0.5);
  }
  draw(Math.round(width / 2 - sumX / mass), Math.round(height / 2 - sumY / mass));
}
