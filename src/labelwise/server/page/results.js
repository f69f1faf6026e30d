// What is on the page as the files that `labelwise predict --json` and `--csv` write.

export function asJson(cards) {
  const entries = cards.map(({ file, scores, chosen, message }) => scores
    ? { image: file.name, labels: Object.fromEntries(chosen), all_scores: Object.fromEntries(scores) }
    : { image: file.name, error: message });
  return `[\n${entries.map((entry) => JSON.stringify(entry)).join(",\n")}\n]\n`;
}

/** A manifest that `--data` reads: photos without an answer get no row, or it would say that nothing is in them. */
export function asCsv(cards, labels) {
  const plain = !labels.some((label) => label.includes("|") || label.startsWith("["));
  const cell = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const rows = cards.filter(({ scores }) => scores).map(({ file, chosen }) => {
    const names = chosen.map(([label]) => label);
    const scores = chosen.map(([, score]) => score.toFixed(4)).join("|");
    return [file.name, plain ? names.join("|") : JSON.stringify(names), scores].map(cell).join(",");
  });
  return ["image,labels,scores", ...rows, ""].join("\n");
}

export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
