// One photo with its labels, its map and whatever went wrong with it.

import { Refused } from "./api.js";
import { element, two } from "./dom.js";
import { expertChart } from "./experts.js";
import { drawHeat } from "./heat.js";

const MOST = 100; // rows of labels in one card
const HIGHEST = 420; // pixels of a photo on the page: upright ones are made narrower

export class Card {
  /** `page` answers: `page.model`, `page.threshold(label)`, `page.predict(file, waiting)`, `page.explain(file, label, waiting)`. */
  constructor(file, page) {
    this.file = file;
    this.page = page;
    this.scores = null; // [[label, score], …], best first
    this.all = false; // labels that do not apply are shown, too
    this.looking = null; // the label whose map is shown
    this.maps = new Map(); // label -> the server's explanation
    this.round = 0; // answers to what was asked for an earlier model or earlier labels are dropped
    this.build();
  }

  build() {
    this.picture = element("img", { src: URL.createObjectURL(this.file), alt: this.file.name, decoding: "async" });
    this.picture.onload = () => {
      this.frame.style.maxWidth = `${HIGHEST * this.picture.naturalWidth / this.picture.naturalHeight}px`;
    };
    this.picture.onerror = () => { // a format that the server reads and this browser does not, or no picture
      this.frame.classList.add("unseen");
      this.frame.replaceChildren("This browser cannot show the file.");
    };
    this.canvas = element("canvas", { hidden: true });
    this.canvas.setAttribute("role", "img");
    this.frame = element("div", { className: "frame" }, this.picture, this.canvas);
    this.opacity = element("input", { type: "range", min: 0, max: 1, step: 0.02, value: 0.72 });
    this.opacity.oninput = () => { this.canvas.style.opacity = this.opacity.value; };
    this.caption = element("span");
    this.tools = element("label", { className: "tools", hidden: true }, this.caption, this.opacity);
    this.message = element("p", { className: "message" });
    this.message.setAttribute("role", "status");
    this.again = element("button", { type: "button", className: "quiet", hidden: true }, "Try again");
    this.again.onclick = () => this.page.enqueue(this);
    this.list = element("ul", { className: "labels" });
    this.more = element("button", { type: "button", className: "quiet", hidden: true });
    this.more.onclick = () => { this.all = !this.all; this.draw(); };
    this.experts = element("div");
    const remove = element("button", { type: "button", className: "remove", title: "Remove this image" }, "×");
    remove.setAttribute("aria-label", `Remove ${this.file.name}`);
    remove.onclick = () => this.page.remove(this);
    this.root = element("article", { className: "card" },
      element("header", {}, element("h2", { title: this.file.name }, this.file.name), remove),
      this.frame, this.tools, this.message, this.again, this.list, this.more, this.experts);
  }

  /** Forgets what was said of the photo: it is to be asked anew. */
  reset() {
    this.round++;
    this.scores = null;
    this.maps.clear();
    this.look(null);
    this.draw();
    this.say("Waiting for the model …");
    this.root.setAttribute("aria-busy", "true");
  }

  async predict() {
    const round = this.round, current = () => round === this.round;
    try {
      const scores = await this.page.predict(this.file, this.waiting(current));
      if (!current()) return;
      this.scores = Object.entries(scores).sort(([, a], [, b]) => b - a); // JavaScript moves names like "7" to the front
      this.say("");
    } catch (error) {
      if (current()) this.fail(error);
    }
    if (!current()) return;
    this.root.removeAttribute("aria-busy");
    this.draw();
  }

  waiting(current) {
    return (seconds) => { if (current()) this.say(`The server is busy; retrying in ${seconds} s …`); };
  }

  fail(error) {
    if (!(error instanceof Refused)) throw error;
    this.say(error.message, true);
    this.again.hidden = ![0, 429, 503].includes(error.status); // what may go well the next time
    if (error.status === 401) this.page.askForKey(error.message);
  }

  say(text, bad = false) {
    this.message.textContent = text;
    this.message.classList.toggle("bad", bad);
    this.again.hidden = true;
  }

  /** [[label, score], …] that apply, best first. */
  chosen() {
    if (!this.scores) return [];
    if (this.page.model.task === "single-label") return this.scores.slice(0, 1);
    return this.scores.filter(([label, score]) => score >= this.page.threshold(label));
  }

  draw() {
    const chosen = this.chosen(), names = new Set(chosen.map(([label]) => label));
    const others = (this.scores ?? []).filter(([label]) => !names.has(label));
    const rows = this.all ? [...chosen, ...others] : chosen;
    this.list.classList.toggle("long", this.all);
    this.list.replaceChildren(...rows.slice(0, MOST).map(([label, score]) => this.row(label, score, names.has(label))));
    if (this.scores && !chosen.length && !this.all) {
      const [label, score] = this.scores[0];
      this.list.append(element("li", { className: "none" }, `No label applies; the best is ${label} with ${two(score)}.`));
    }
    this.more.hidden = !others.length;
    this.more.textContent = this.all ? "Show only labels that apply" : `Show the other ${others.length}`;
    this.more.setAttribute("aria-expanded", String(this.all));
    if (this.scores) this.picture.alt = `${this.file.name}: ${chosen.map(([label]) => label).join(", ") || "no label applies"}`;
  }

  row(label, score, applies) {
    const fill = element("i"), mark = element("s");
    fill.style.width = `${100 * score}%`;
    const single = this.page.model.task === "single-label", threshold = this.page.threshold(label);
    mark.style.left = `${100 * threshold}%`;
    const bar = element("span", { className: "bar" }, fill, ...(single ? [] : [mark]));
    const limit = single ? "" : `, threshold ${two(threshold)}`;
    const parts = [element("span", { className: "label" }, label), bar, element("span", { className: "score" }, two(score))];
    const said = `${label}: score ${two(score)}${limit}`;
    if (!this.page.model.explain) return element("li", { className: applies ? "" : "below", title: said }, ...parts);
    const button = element("button", { type: "button", title: `${said}. Show where the model looked.` }, ...parts);
    button.setAttribute("aria-pressed", String(label === this.looking));
    button.setAttribute("aria-label", `${said}. Show where the model looked.`);
    button.onclick = () => this.look(label === this.looking ? null : label);
    return element("li", { className: applies ? "" : "below" }, button);
  }

  /** Shows where the model looked for `label`, or hides the map again. */
  async look(label) {
    this.looking = label;
    this.canvas.hidden = this.tools.hidden = true;
    this.frame.classList.remove("mapped");
    this.experts.replaceChildren();
    for (const button of this.list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.firstChild.textContent === label));
    }
    if (this.scores) this.say("");
    if (label === null) return;
    const round = this.round, current = () => round === this.round && label === this.looking;
    try {
      if (!this.maps.has(label)) {
        this.say(`Computing the map of ${label} …`);
        const found = await this.page.explain(this.file, label, this.waiting(current));
        if (round === this.round) this.maps.set(label, found);
      }
      await this.picture.decode().catch(() => {}); // its size has to be known
      if (!current()) return;
      this.say("");
      this.show(label, this.maps.get(label));
    } catch (error) {
      if (current()) this.fail(error);
      this.again.hidden = true; // another click on the label asks again; "Try again" would ask for the labels
    }
  }

  show(label, { maps, experts, kind }) {
    const seen = !this.frame.classList.contains("unseen"), map = maps[label];
    if (!map) return this.say("There is no map of this label: a label with a comma cannot be requested.", true);
    if (!seen) this.say("The map cannot be shown, because the browser cannot show the image.");
    else if (!map.flat().some(Boolean)) this.say(`Nothing in the image supports ${label}.`); // Grad-CAM says so
    this.canvas.hidden = this.tools.hidden = !seen;
    if (seen) {
      drawHeat(this.canvas, map, this.picture.naturalWidth, this.picture.naturalHeight, this.page.model);
      this.canvas.style.opacity = this.opacity.value;
      this.canvas.setAttribute("aria-label", `Map of where the model looked for ${label}`);
      this.frame.classList.add("mapped");
      const way = kind === "grad-cam" ? "Where it looked (Grad-CAM) for " : "Where it looked for ";
      this.caption.replaceChildren(way, element("b", {}, label));
      this.opacity.setAttribute("aria-label", `Opacity of the map of ${label}`);
    }
    if (experts) this.experts.replaceChildren(expertChart(label, experts.names, experts.weights[label]));
  }

  forget() {
    this.round++;
    URL.revokeObjectURL(this.picture.src);
    this.root.remove();
  }
}
