// One photo with its labels, their corrections, its map and whatever went wrong with it.

import { Refused } from "./api.js";
import { drawn, element, two } from "./dom.js";
import { expertChart } from "./experts.js";
import { drawHeat } from "./heat.js";

const MOST = 100; // rows of labels in one card
const EYE = "M1.5 8s2.4-4.5 6.5-4.5S14.5 8 14.5 8s-2.4 4.5-6.5 4.5S1.5 8 1.5 8zM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4z";

export class Card {
  /** `page` answers: `page.model`, `page.threshold(label)`, `page.predict(file, known, waiting)`, … (see page.js). */
  constructor(file, page) {
    this.file = file;
    this.page = page;
    this.scores = null; // [[label, score], …], best first
    this.scored = new Map(); // the same, for looking one up
    this.unaided = new Map(); // the same, as long as the model was told nothing
    this.corrections = new Map(); // label -> whether it applies, where the user knows better; also labels of their own
    this.all = false; // labels that do not apply are shown, too
    this.looking = null; // the label whose map is shown
    this.maps = new Map(); // label -> the server's explanation
    this.round = 0; // answers to what was asked for an earlier model or earlier labels are dropped
    this.build();
  }

  build() {
    this.picture = element("img", { src: URL.createObjectURL(this.file), alt: this.file.name, decoding: "async" });
    this.picture.onload = () => {
      this.frame.style.setProperty("--ratio", this.picture.naturalWidth / this.picture.naturalHeight);
    };
    this.picture.onerror = () => { // a format that the server reads and this browser does not, or no picture
      this.frame.classList.add("unseen");
      this.frame.replaceChildren("This browser cannot show the file.");
    };
    this.canvas = element("canvas", { hidden: true });
    this.canvas.setAttribute("role", "img");
    this.frame = element("div", { className: "frame" }, this.picture, this.canvas);
    this.frame.onclick = () => this.page.enlarge(this);
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
    this.where = element("button", { type: "button", className: "quiet where", hidden: true }, eye(), "Where it looked");
    this.where.onclick = () => this.look(this.looking === null ? this.best() : null);
    const enlarge = element("button", { type: "button", className: "quiet" }, "Enlarge");
    enlarge.setAttribute("aria-label", `Enlarge ${this.file.name}`);
    enlarge.onclick = () => this.page.enlarge(this);
    this.buttons = element("div", { className: "buttons" }, this.where, enlarge);
    this.added = element("input", { placeholder: "Add a label", autocomplete: "off", spellcheck: false });
    this.added.setAttribute("list", "label-names");
    this.added.setAttribute("aria-label", `Add a label to ${this.file.name}`);
    this.adding = element("form", { className: "adding", hidden: true }, this.added, element("button", { className: "quiet" }, "Add"));
    this.adding.onsubmit = (event) => {
      event.preventDefault();
      const label = this.added.value.trim();
      this.added.value = "";
      if (label) this.correct(label, true);
    };
    this.experts = element("div");
    const remove = element("button", { type: "button", className: "remove", title: "Remove this image" }, "×");
    remove.setAttribute("aria-label", `Remove ${this.file.name}`);
    remove.onclick = () => this.page.remove(this);
    this.root = element("article", { className: "card" },
      element("header", {}, element("h2", { title: this.file.name }, this.file.name), remove),
      this.frame, this.tools, this.message, this.again, this.buttons, this.list, this.more, this.adding, this.experts);
  }

  /** Forgets what was said of the photo: it is to be asked anew. */
  reset() {
    this.asked();
    this.scores = null;
    this.scored.clear();
    this.unaided.clear();
    this.draw();
    this.say("Waiting for the model …");
  }

  /** What is under way or shown on the photo belongs to an earlier question. */
  asked() {
    this.round++;
    this.maps.clear();
    this.look(null);
    this.root.setAttribute("aria-busy", "true");
    return this;
  }

  /** The corrected labels of the model, if it is told of them. */
  known() {
    const own = new Set(this.page.model.labels);
    return new Map(this.page.tells ? [...this.corrections].filter(([label]) => own.has(label)) : []);
  }

  async predict() {
    const round = this.round, current = () => round === this.round, known = this.known();
    try {
      const scores = await this.page.predict(this.file, known, this.waiting(current));
      if (!current()) return;
      this.scores = Object.entries(scores).sort(([, a], [, b]) => b - a); // JavaScript moves names like "7" to the front
      this.scored = new Map(this.scores);
      if (!known.size) this.unaided = this.scored;
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

  /** Whether the model says that the label applies. */
  predicted(label, score) {
    return this.page.model.task === "single-label" ? label === this.scores[0][0] : score >= this.page.threshold(label);
  }

  /** [[label, score], …] that apply, best first and the user's own labels, which have no score, last. */
  chosen() {
    if (!this.scores) return [];
    const known = this.scores.filter(([label, score]) => this.corrections.get(label) ?? this.predicted(label, score));
    return [...known, ...this.own().filter(([label]) => this.corrections.get(label))];
  }

  /** [[label, null], …] that the user added and the model does not know. */
  own() {
    return [...this.corrections.keys()].filter((label) => !this.scored.has(label)).map((label) => [label, null]);
  }

  best() {
    return (this.chosen().find(([, score]) => score !== null) ?? this.scores[0])[0];
  }

  /** The score of `label`, or of the best one; -1 while there is none. */
  score(label) {
    return (label === null ? this.scores?.[0][1] : this.scored.get(label)) ?? -1;
  }

  /** The user says whether the label applies. What the model says, too, is no correction. */
  correct(label, applies) {
    const score = this.unaided.get(label); // what it was told is no answer of its own
    if (this.page.model.task === "single-label" && applies) this.corrections = new Map([[this.scores[0][0], false]]);
    if (score !== undefined && applies === this.predicted(label, score)) this.corrections.delete(label);
    else this.corrections.set(label, applies);
    this.draw();
    this.page.corrected(this);
  }

  draw() {
    const chosen = this.chosen(), names = new Set(chosen.map(([label]) => label));
    const others = this.scores ? [...this.scores, ...this.own()].filter(([label]) => !names.has(label)) : [];
    const refused = others.filter(([label]) => this.corrections.has(label)); // shown, so that it can be undone
    const rows = [...chosen, ...(this.all ? others : refused)].slice(0, MOST);
    const focused = document.activeElement, kept = this.list.contains(focused);
    this.list.classList.toggle("long", this.all);
    this.list.replaceChildren(...rows.map(([label, score]) => this.row(label, score, names.has(label))));
    if (kept) this.controls(focused.tagName).find((other) => other.dataset.label === focused.dataset.label)?.focus();
    if (this.scores && !chosen.length && !this.all) {
      const [label, score] = this.scores[0];
      this.list.append(element("li", { className: "none" }, `No label applies; the best is ${label} with ${two(score)}.`));
    }
    this.more.hidden = others.length <= refused.length;
    this.more.textContent = this.all ? "Show only labels that apply" : `Show the other ${others.length - refused.length}`;
    this.more.setAttribute("aria-expanded", String(this.all));
    this.where.hidden = !this.scores || !this.page.model.explain;
    this.adding.hidden = !this.scores;
    if (this.scores) this.picture.alt = `${this.file.name}: ${chosen.map(([label]) => label).join(", ") || "no label applies"}`;
  }

  /** The buttons or inputs of the rows. */
  controls(tag) {
    return [...this.list.querySelectorAll(tag)];
  }

  row(label, score, applies) {
    const single = this.page.model.task === "single-label", corrected = this.corrections.has(label);
    const threshold = this.page.threshold(label), limit = single ? "" : `, threshold ${two(threshold)}`;
    const said = score === null ? `${label}: added by you` : `${label}: score ${two(score)}${limit}${corrected ? "; corrected" : ""}`;
    const box = element("input", { type: "checkbox", checked: applies });
    box.setAttribute("aria-label", said);
    box.dataset.label = label;
    box.onchange = () => this.correct(label, box.checked);
    const fill = element("i"), mark = element("s");
    fill.style.width = `${100 * score}%`;
    mark.style.left = `${100 * threshold}%`;
    const parts = [
      element("label", { title: said }, box, element("span", { className: "label" }, label)),
      ...(score === null ? [element("small", {}, "added by you")] : [
        element("span", { className: "bar" }, ...(single ? [fill] : [fill, mark])),
        element("span", { className: "score" }, two(score)),
      ]),
    ];
    if (this.page.model.explain && score !== null) {
      const button = element("button", { type: "button", className: "look", title: `Where it looked for ${label}` }, eye());
      button.setAttribute("aria-label", `Where it looked for ${label}`);
      button.setAttribute("aria-pressed", String(label === this.looking));
      button.dataset.label = label;
      button.onclick = () => this.look(label === this.looking ? null : label);
      parts.push(button);
    }
    return element("li", { className: `${applies ? "" : "below"}${corrected ? " corrected" : ""}` }, ...parts);
  }

  /** Shows where the model looked for `label`, or hides the map again. */
  async look(label) {
    this.looking = label;
    this.canvas.hidden = this.tools.hidden = true;
    this.frame.classList.remove("mapped");
    this.experts.replaceChildren();
    for (const button of this.controls("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.label === label));
    }
    this.where.setAttribute("aria-pressed", String(label !== null));
    if (this.scores) this.say("");
    if (label === null) return;
    const round = this.round, current = () => round === this.round && label === this.looking;
    try {
      if (!this.maps.has(label)) {
        this.say(`Computing the map of ${label} …`);
        const found = await this.page.explain(this.file, label, this.known(), this.waiting(current));
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
      const { naturalWidth, naturalHeight } = this.picture;
      drawHeat(this.canvas, map, this.score(label), naturalWidth, naturalHeight, this.page.model);
      this.canvas.style.opacity = this.opacity.value;
      this.canvas.setAttribute("aria-label", `Map of where the model looked for ${label}`);
      this.frame.classList.add("mapped");
      const way = kind === "grad-cam" ? "Where it looked (Grad-CAM) for " : "Where it looked for ";
      this.caption.replaceChildren(way, element("b", {}, label), ", as strong as its score");
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

function eye() {
  return drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "eye" }, drawn("path", { d: EYE }));
}
