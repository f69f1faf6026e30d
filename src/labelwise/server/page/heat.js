// An attention map over a photo: the same colours, strength and part of the photo as in labelwise's reports.

// The colour map inferno at nine even points: equal steps of heat look like equal steps.
const INFERNO = [[0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10],
  [249, 201, 50], [252, 255, 164]];
const COLDEST = 0.3; // of the colour map: black would only darken the photo
const LONGEST = 384; // pixels of the canvas: heat is smooth, the browser enlarges the rest

/**
 * Draws `map` (rows of numbers) so that it lies on what `model` saw of a photo of this size. It is as strong as the
 * label's `score`: attention sums to 1 also for a label that is not there.
 */
export function drawHeat(canvas, map, score, width, height, model) {
  const scale = LONGEST / Math.max(width, height);
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  const [left, top, wide, high] = seenBox(canvas.width, canvas.height, model);
  if (model.resize === "crop") {
    context.fillStyle = "rgb(0 0 0 / 70%)"; // the model saw nothing there
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.clearRect(left, top, wide, high);
  }
  const w = Math.max(1, Math.round(wide)), h = Math.max(1, Math.round(high));
  const heat = new OffscreenCanvas(w, h);
  heat.getContext("2d").putImageData(new ImageData(colours(enlarged(shares(map, score), w, h)), w, h), 0, 0);
  context.drawImage(heat, left, top);
}

/** What a model sees of a picture: [left, top, width, height] in its pixels; padding lies outside of it. */
export function seenBox(width, height, { resize, size, crop_ratio: ratio = 1 }) {
  if (resize === "squash") return [0, 0, width, height];
  const shorter = Math.min(width, height);
  const side = resize === "pad" ? Math.max(width, height) : shorter * size / Math.floor(size / ratio);
  return [(width - side) / 2, (height - side) / 2, side, side];
}

/** 0 to `score`; faint all over if attention is spread almost evenly: stretched, it would show a preference that is not there. */
function shares(map, score) {
  const values = map.flat();
  const low = Math.min(...values), mean = values.reduce((a, b) => a + b, 0) / values.length;
  const span = Math.max(Math.max(...values) - low, mean, 1e-12);
  return map.map((row) => row.map((value) => score * (value - low) / span));
}

/** [height x width] values between the points of a small grid, by cubic interpolation: first along rows, then columns. */
function enlarged(grid, width, height) {
  const across = weights(grid[0].length, width), down = weights(grid.length, height);
  const rows = grid.map((row) => across.map((taps) => taps.reduce((sum, [at, by]) => sum + by * row[at], 0)));
  const values = new Float32Array(width * height);
  down.forEach((taps, y) => {
    for (let x = 0; x < width; x++) values[y * width + x] = taps.reduce((sum, [at, by]) => sum + by * rows[at][x], 0);
  });
  return values;
}

/** For each of `many` places the four nearest of `few` points and their shares (Catmull-Rom); edges are repeated. */
function weights(few, many) {
  return Array.from({ length: many }, (_, place) => {
    const where = (place + 0.5) * few / many - 0.5, first = Math.floor(where), t = where - first;
    const cubic = [((2 - t) * t - 1) * t / 2, ((3 * t - 5) * t * t + 2) / 2, ((4 - 3 * t) * t + 1) * t / 2, (t - 1) * t * t / 2];
    return cubic.map((by, tap) => [Math.min(few - 1, Math.max(0, first + tap - 1)), by]);
  });
}

function colours(values) {
  const pixels = new Uint8ClampedArray(4 * values.length);
  values.forEach((value, place) => {
    const warm = Math.min(1, Math.max(0, value));
    const at = (COLDEST + (1 - COLDEST) * warm) * (INFERNO.length - 1), low = Math.min(INFERNO.length - 2, Math.floor(at));
    for (let channel = 0; channel < 3; channel++) {
      pixels[4 * place + channel] = INFERNO[low][channel] + (at - low) * (INFERNO[low + 1][channel] - INFERNO[low][channel]);
    }
    pixels[4 * place + 3] = 255 * warm;
  });
  return pixels;
}
