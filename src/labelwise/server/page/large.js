// One image as large as the window, with the map that is laid over it.

import { byId } from "./dom.js";

export class Large {
  #cards = [];
  #card = null;

  constructor() {
    byId("large").onclose = () => this.#putBack();
    byId("large").onclick = (event) => { if (event.target === byId("large")) byId("large").close(); }; // beside the image
    byId("large").onkeydown = ({ key }) => { if (key in STEPS) this.#step(STEPS[key]); };
    byId("previous").onclick = () => this.#step(-1);
    byId("next").onclick = () => this.#step(1);
  }

  /** Shows `card`; the arrows go through `cards`. */
  open(card, cards) {
    if (byId("large").open) return;
    this.#cards = cards;
    this.#show(card);
    byId("large").showModal();
  }

  #show(card) {
    this.#putBack();
    this.#card = card;
    byId("large-name").textContent = card.file.name;
    byId("large-labels").textContent = card.chosen().map(([label]) => label).join(", ");
    byId("large").append(card.frame); // the same element: its map comes along
    byId("previous").disabled = card === this.#cards[0];
    byId("next").disabled = card === this.#cards.at(-1);
  }

  #step(by) {
    const next = this.#cards[this.#cards.indexOf(this.#card) + by];
    if (next) this.#show(next);
  }

  #putBack() {
    this.#card?.root.querySelector("header").after(this.#card.frame);
    this.#card = null;
  }
}

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
