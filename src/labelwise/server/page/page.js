// The page: photos come in, each becomes a card; settings above and beside them apply to all cards at once.

import { ask, Queue, Refused, useKey } from "./api.js";
import { Card } from "./card.js";
import { byId, element } from "./dom.js";
import { Large } from "./large.js";
import { asCsv, asJson, download, downloadXmp } from "./results.js";
import { Thresholds } from "./thresholds.js";
import { View } from "./view.js";

const queue = new Queue();
const large = new Large();
let models = [], cards = [], shown = [], words = [], drawing = 0;

const page = {
  model: null,
  threshold: (label) => thresholds.get(label),
  async predict(photo, known, waiting) {
    const query = { all_scores: true, ...(words.length ? { labels: words.join(",") } : {}), ...asQuery(known) };
    const answer = await ask(`models/${encodeURIComponent(page.model.name)}/predict`, { photo, query, waiting });
    return answer.predictions[0].all_scores;
  },
  explain: (photo, label, known, waiting) =>
    ask(`models/${encodeURIComponent(page.model.name)}/explain`, { photo, query: { labels: label, ...asQuery(known) }, waiting }),
  /** Whether the labels that the user corrects are told to the model. */
  get tells() { return page.model.known && byId("known").checked; },
  enqueue(card) {
    card.reset();
    page.ask(card);
  },
  ask(card) {
    if (card.queued) return;
    card.queued = true;
    queue.add(async () => {
      card.queued = false;
      if (!cards.includes(card)) return; // removed while it waited
      await card.predict();
      answered();
    });
  },
  remove(card) {
    cards = cards.filter((other) => other !== card);
    card.forget();
    arrange();
  },
  enlarge: (card) => large.open(card, shown),
  corrected(card) {
    summarise(); // the card stays where it is, also if the filter no longer fits
    if (page.tells) page.ask(card.asked());
  },
  askForKey(reason) {
    byId("key-reason").textContent = reason;
    if (!byId("key-form").hidden) return;
    byId("key-form").hidden = false;
    byId("key").focus();
  },
};
const best = (label) => Math.max(0, ...cards.map((card) => card.score(label)));
const thresholds = new Thresholds(redraw, best);
const view = new View(arrange);

/** Labels that are known, a Map to whether they apply, as options of a request. A comma separates them. */
function asQuery(known) {
  const names = (applies) => [...known].filter(([label, value]) => value === applies && !label.includes(",")).map(([label]) => label).join(",");
  return Object.fromEntries([["known", names(true)], ["known_absent", names(false)]].filter(([, value]) => value));
}

function redraw() {
  cancelAnimationFrame(drawing); // a moved slider fires more often than the screen is drawn
  drawing = requestAnimationFrame(() => { cards.forEach((card) => card.draw()); arrange(); thresholds.remember(); });
}

function arrange() {
  shown = view.arrange(cards);
  summarise();
}

function answered() {
  if (thresholds.values.size > 60) thresholds.list();
  arrange();
}

function summarise() {
  byId("work").hidden = !cards.length;
  byId("drop").classList.toggle("small", cards.length > 0);
  const done = cards.filter((card) => card.scores), labels = done.reduce((sum, card) => sum + card.chosen().length, 0);
  const corrected = cards.reduce((sum, card) => sum + card.corrections.size, 0);
  const hidden = cards.length - shown.length;
  byId("summary").textContent = `${labels} labels on ${done.length} of ${cards.length} images.`
    + (corrected ? ` ${corrected} corrected.` : "") + (hidden ? ` ${hidden} not shown.` : "");
  for (const id of ["copy", "save-json", "save-csv", "save-xmp"]) byId(id).disabled = !done.length;
}

function add(files) {
  const fresh = [...files].map((file) => new Card(file, page));
  cards.push(...fresh);
  byId("photos").append(...fresh.map((card) => card.root));
  arrange();
  if (page.model) fresh.forEach(page.enqueue);
}

/** Starts again with the chosen model and labels. */
function restart() {
  page.model = models.find((model) => model.name === byId("model").value) ?? models[0];
  byId("words-form").hidden = !page.model.words;
  byId("known-field").hidden = !page.model.known;
  if (!page.model.words) words = [];
  byId("own-labels").hidden = !words.length;
  byId("thresholds").hidden = page.model.task === "single-label";
  const own = new Map(Object.entries(page.model.thresholds));
  const sorted = [...own.values()].sort((a, b) => a - b), half = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2; // as for new labels in Python
  const labels = words.length ? words : page.model.labels;
  const few = labels.slice(0, 12).join(", "), more = labels.length - 12;
  const others = more > 0 ? ` and ${more.toLocaleString("en")} other${more > 1 ? "s" : ""}` : "";
  byId("about").textContent = `${page.model.name} looks for ${few}${others}.`;
  thresholds.use(new Map(labels.map((label) => [label, own.get(label) ?? median])), page.model.name);
  view.offer(labels);
  cards.forEach(page.enqueue);
}

async function start() {
  byId("trouble").hidden = true;
  try {
    ({ models } = await ask("models"));
    const first = models.find((model) => model.default) ?? models[0];
    byId("model").replaceChildren(...models.map(({ name }) => element("option", { value: name, selected: name === first.name }, name)));
    byId("model-field").hidden = models.length < 2;
    restart();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401) return page.askForKey(error.message);
    byId("trouble").querySelector("p").textContent = error.message;
    byId("trouble").hidden = false;
  }
}

byId("files").onchange = (event) => { add(event.target.files); event.target.value = ""; };
byId("model").onchange = () => { words = []; byId("words").value = ""; restart(); };
byId("trouble").querySelector("button").onclick = start;
byId("key-form").onsubmit = (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key-form").hidden = true;
  page.model ? cards.filter((card) => !card.scores).forEach(page.enqueue) : start();
};
byId("words-form").onsubmit = (event) => {
  event.preventDefault();
  words = [...new Set(byId("words").value.split(",").map((word) => word.trim()).filter(Boolean))];
  restart();
};
byId("known").onchange = () => cards.filter((card) => card.corrections.size).forEach((card) => page.ask(card.asked()));
byId("own-labels").onclick = () => { words = []; byId("words").value = ""; restart(); };
byId("clear").onclick = () => { [...cards].forEach(page.remove); byId("files").focus(); };

const contents = () => cards.map((card) => (
  { file: card.file, scores: card.scores, chosen: card.chosen(), message: card.message.textContent }));
byId("save-json").onclick = () => download("labels.json", asJson(contents()), "application/json");
byId("save-csv").onclick = () => download("labels.csv", asCsv(contents()), "text/csv");
byId("save-xmp").onclick = () => downloadXmp(contents());
byId("copy").hidden = !navigator.clipboard; // there is none on an address that is neither https nor this machine
byId("copy").onclick = async (event) => {
  await navigator.clipboard.writeText(asJson(contents()));
  event.target.textContent = "Copied";
  setTimeout(() => { event.target.textContent = "Copy JSON"; }, 1500);
};

addEventListener("paste", (event) => { if (event.clipboardData.files.length) add(event.clipboardData.files); });
addEventListener("dragover", (event) => { event.preventDefault(); byId("drop").classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").classList.remove("over"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  add(event.dataTransfer.files);
});
if (matchMedia("(max-width: 900px)").matches) byId("thresholds").open = false; // below the photos, and long
start();
