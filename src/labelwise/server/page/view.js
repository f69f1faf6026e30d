// Which images are shown, and in which order.

import { byId, element } from "./dom.js";

const ORDERS = {
  added: () => 0, // sorting is stable
  name: (a, b) => a.file.name.localeCompare(b.file.name, undefined, { numeric: true }),
  highest: (a, b, label) => b.score(label) - a.score(label),
  lowest: (a, b, label) => a.score(label) - b.score(label),
};

export class View {
  /** `changed()` is called when another label, filter or order was chosen. */
  constructor(changed) {
    this.known = new Set();
    byId("which").onchange = byId("sort").onchange = changed;
    byId("wanted").oninput = () => {
      const label = byId("wanted").value.trim();
      if (label && !this.known.has(label)) return; // still typing
      byId("which").value = label ? "with" : "all";
      changed();
    };
    byId("view").onsubmit = (event) => event.preventDefault();
  }

  /** The labels that can be chosen. */
  offer(labels) {
    this.known = new Set(labels);
    byId("label-names").replaceChildren(...labels.map((label) => element("option", { value: label })));
    byId("wanted").value = "";
    byId("which").value = "all";
  }

  /** Hides and sorts the cards; gives those that are shown. */
  arrange(cards) {
    const typed = byId("wanted").value.trim(), label = this.known.has(typed) ? typed : null, which = byId("which").value;
    const has = (card) => card.chosen().some(([name]) => label === null || name === label);
    const fits = { all: () => true, with: has, without: (card) => !has(card), corrected: (card) => card.corrections.size };
    for (const card of cards) card.root.hidden = !fits[which](card);
    const order = ORDERS[byId("sort").value], sorted = cards.toSorted((a, b) => order(a, b, label));
    const moved = sorted.some((card, place) => byId("photos").children[place] !== card.root);
    if (moved) byId("photos").append(...sorted.map((card) => card.root)); // else the keyboard's focus would be lost
    return sorted.filter((card) => !card.root.hidden);
  }
}
