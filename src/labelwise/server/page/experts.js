// How much each expert counts for one label: a chart of its gate's weights.

import { drawn, element } from "./dom.js";

const WIDTH = 340, HEIGHT = 150, LEFT = 40, RIGHT = 4, TOP = 8, BOTTOM = 20;
const WHAT = "Small networks inside the model's head. A gate decides how much each of them counts for a label.";
const LEAST = 0.001; // the log scale's foot: what counts less is drawn as this

/** `names` of the experts ("own", "shared 0", …) and the label's gate `weights` in the same order; they sum to 1. */
export function expertChart(label, names, weights) {
  const y = (weight) => TOP + Math.log10(Math.max(weight, LEAST)) / Math.log10(LEAST) * (HEIGHT - TOP - BOTTOM);
  const own = names.filter((name) => !name.startsWith("shared")).length; // they come first, then a gap
  const step = (WIDTH - LEFT - RIGHT) / (names.length + 0.6);
  const every = Math.ceil(17 / step); // so many names under the columns that they do not touch
  const best = weights.indexOf(Math.max(...weights));
  const said = `${names[best]} counts most for ${label}, with ${weights[best].toFixed(2)} of 1`;
  const chart = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Experts: ${said}` });
  for (let tick = 1; tick >= LEAST * 0.99; tick /= 10) {
    chart.append(
      drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }),
      drawn("text", { x: LEFT - 6, y: y(tick) + 4, class: "end" }, String(Number(tick.toPrecision(1)))),
    );
  }
  names.forEach((name, place) => {
    const shared = place >= own, x = LEFT + (place + (shared ? 0.6 : 0)) * step;
    const title = drawn("title", {}, `${name}: ${weights[place].toPrecision(2)}`);
    chart.append(drawn("rect", {
      x: x + step * 0.12, width: step * 0.76, y: y(weights[place]), height: Math.max(1, y(LEAST) - y(weights[place])),
      class: shared ? "shared" : "own",
    }, title));
    if (!shared || (place - own) % every === 0) {
      chart.append(drawn("text", { x: x + step / 2, y: HEIGHT - 5, class: "mid" }, name.replace("shared ", "")));
    }
  });
  const key = element("span", { className: "key" },
    element("i", { className: "own" }), "own", element("i", { className: "shared" }), "shared, by number");
  const caption = element("figcaption", {}, element("abbr", { title: WHAT }, "Experts"), key,
    element("small", {}, `Gate weights, log scale: ${said}.`));
  return element("figure", { className: "experts" }, caption, chart);
}
