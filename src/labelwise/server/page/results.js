// What is on the page, with its corrections, as the files that `labelwise predict` writes: --json, --csv, --sidecar xmp.

import { asXmp, sidecarNames, zipped } from "./xmp.js";

export function asJson(cards) {
  const entries = cards.map(({ file, scores, chosen, message }) => scores
    ? { image: file.name, labels: Object.fromEntries(chosen), all_scores: Object.fromEntries(scores) }
    : { image: file.name, error: message });
  return `[\n${entries.map((entry) => JSON.stringify(entry)).join(",\n")}\n]\n`;
}

/** A manifest that `--data` reads: photos without an answer get no row, or it would say that nothing is in them. */
export function asCsv(cards) {
  const known = cards.filter(({ scores }) => scores), labels = known.flatMap(({ chosen }) => chosen.map(([label]) => label));
  const plain = !labels.some((label) => label.includes("|") || label.startsWith("["));
  const cell = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const rows = known.map(({ file, chosen }) => {
    const names = chosen.map(([label]) => label);
    const scores = chosen.map(([, score]) => score?.toFixed(4) ?? "").join("|");
    return [file.name, plain ? names.join("|") : JSON.stringify(names), scores].map(cell).join(",");
  });
  return ["image,labels,scores", ...rows, ""].join("\n");
}

/** Downloads a sidecar for each photo with an answer. */
export function downloadXmp(cards) {
  const known = cards.filter(({ scores }) => scores), names = sidecarNames(known.map(({ file }) => file.name));
  const files = known.map(({ chosen }, place) => [names[place], asXmp(chosen.map(([label]) => label))]);
  if (files.length === 1) download(...files[0], "application/rdf+xml");
  else download("labels-xmp.zip", zipped(files), "application/zip");
}

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
