// A slider for each label and one for all of them.

import { byId, element, recall, remember, two } from "./dom.js";

const SHOWN = 60; // sliders at once; of more labels those with the best scores, or those that are looked for

export class Thresholds {
  /** `changed()` is called when a threshold was moved; `best(label)` is its highest score in the photos. */
  constructor(changed, best) {
    this.changed = changed;
    this.best = best;
    this.own = new Map();
    this.values = new Map();
    byId("all").oninput = (event) => this.set([...this.values.keys()], Number(event.target.value));
    byId("reset").onclick = () => { this.values = new Map(this.own); this.list(); this.changed(); };
    byId("find").oninput = () => this.list();
  }

  /** Starts again with these labels' own thresholds, a Map; what was moved before a reload of this `model` stays so. */
  use(thresholds, model) {
    this.own = thresholds;
    this.key = `thresholds of ${model}`;
    const moved = recall(this.key);
    this.values = new Map([...thresholds].map(([label, own]) => [label, moved[label] ?? own]));
    byId("find").value = "";
    byId("find-field").hidden = thresholds.size <= SHOWN;
    this.list();
  }

  get(label) {
    return this.values.get(label) ?? 0.5;
  }

  remember() {
    const moved = [...this.values].filter(([label, value]) => value !== this.own.get(label));
    remember(this.key, Object.fromEntries(moved));
  }

  set(labels, value) {
    for (const label of labels) this.values.set(label, value);
    for (const slider of byId("sliders").querySelectorAll("input")) this.show(slider);
    this.showAll();
    this.changed();
  }

  list() {
    const wanted = byId("find").value.trim().toLowerCase();
    let labels = [...this.values.keys()].filter((label) => label.toLowerCase().includes(wanted));
    const found = labels.length;
    if (found > SHOWN) labels = labels.sort((a, b) => this.best(b) - this.best(a)).slice(0, SHOWN);
    byId("sliders").replaceChildren(...labels.map((label) => this.slider(label)));
    byId("sliders-note").hidden = found <= SHOWN;
    byId("sliders-note").textContent = `${SHOWN} of ${found.toLocaleString("en")} labels, those with the best scores.`;
    this.showAll();
  }

  slider(label) {
    const input = element("input", { type: "range", min: 0, max: 1, step: 0.01 });
    input.dataset.label = label;
    input.setAttribute("aria-label", `Threshold of ${label}`);
    input.oninput = () => this.set([label], Number(input.value));
    const name = element("span", { className: "label", title: label }, label);
    const row = element("li", { className: "slider" }, name, input, element("output"));
    this.show(input);
    return row;
  }

  show(input) {
    const value = this.get(input.dataset.label);
    input.value = value;
    input.nextElementSibling.textContent = two(value);
  }

  showAll() {
    const values = [...this.values.values()], same = values.every((value) => value === values[0]);
    const middle = values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0.5;
    byId("all").value = same ? values[0] : middle;
    byId("all-value").textContent = same ? two(values[0] ?? 0.5) : "mixed";
    byId("reset").disabled = [...this.own].every(([label, value]) => this.values.get(label) === value);
  }
}
