// Drawings as strokes in a unit square, and how they become an image as MNIST's are: the ink is fitted into 20 of 28
// pixels and its centre of mass put into the middle, white on black (http://yann.lecun.com/exdb/mnist/).
const INK_SHARE = 20 / 28;
const PEN_SHARE = 2.5 / 28; // about as wide as MNIST's
const LEAST_INK = 0.12; // of the pad; a dot is not blown up to a blob
const SAMPLES = 8; // by so many, each way, pixels are finer while they are drawn

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

function boundsOf(strokes) {
  const [xs, ys] = [0, 1].map((i) => strokes.flat().map((point) => point[i]));
  return { x: Math.min(...xs), y: Math.min(...ys), width: Math.max(...xs) - Math.min(...xs), height: Math.max(...ys) - Math.min(...ys) };
}

// Return how bright each pixel of the drawing is, 0 to 255, row by row, its ink fitted and in the middle.
function brightness(strokes, width, height) {
  const side = Math.min(width, height);
  const pen = side * PEN_SHARE;
  const bounds = boundsOf(strokes);
  const scale = (side * INK_SHARE - pen) / Math.max(bounds.width, bounds.height, LEAST_INK);
  const fine = new OffscreenCanvas(width * SAMPLES, height * SAMPLES).getContext("2d");
  fine.scale(SAMPLES, SAMPLES);
  const place = ([x, y]) => [
    width / 2 + (x - bounds.x - bounds.width / 2) * scale,
    height / 2 + (y - bounds.y - bounds.height / 2) * scale,
  ];
  trace(fine, strokes, pen, place);
  const { data } = fine.getImageData(0, 0, width * SAMPLES, height * SAMPLES);
  const pixels = new Float64Array(width * height);
  for (let i = 3, n = 0; i < data.length; i += 4, n++) {
    const [x, y] = [n % (width * SAMPLES), Math.floor(n / (width * SAMPLES))];
    pixels[Math.floor(y / SAMPLES) * width + Math.floor(x / SAMPLES)] += data[i] / SAMPLES ** 2;
  }
  return shifted(pixels, width, height);
}

function shifted(pixels, width, height) {
  let [mass, sumX, sumY] = [0, 0, 0];
  pixels.forEach((value, i) => {
    mass += value;
    sumX += value * ((i % width) + 0.5);
    sumY += value * (Math.floor(i / width) + 0.5);
  });
  const [dx, dy] = [Math.round(width / 2 - sumX / mass), Math.round(height / 2 - sumY / mass)];
  const moved = new Float64Array(pixels.length);
  pixels.forEach((value, i) => {
    const [x, y] = [(i % width) + dx, Math.floor(i / width) + dy];
    if (x >= 0 && x < width && y >= 0 && y < height) moved[y * width + x] = value;
  });
  return moved;
}

// Draw the strokes into a canvas as they are to be sent.
function rasterise(canvas, strokes, width, height) {
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  brightness(strokes, width, height).forEach((value, i) => image.data.set([value, value, value, 255], i * 4));
  context.putImageData(image, 0, 0);
}
