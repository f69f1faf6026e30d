// Scatter of two labels' average precision over the runs; the page's data: {labels, runs: [{name, ap: [...]}], pair}.
(() => {
  const box = document.getElementById("choose-pair");
  if (!box) return;
  const { labels, runs, pair } = JSON.parse(document.getElementById("data").textContent);
  const picture = box.querySelector("svg");
  const [first, second] = box.querySelectorAll("select");
  const said = box.querySelector("p");
  const width = 440, height = 300, left = 48, right = 16, top = 14, bottom = 48;
  const shapes = [
    (x, y) => `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z`,
    (x, y) => `M${x - 4.5} ${y - 4.5}h9v9h-9z`,
    (x, y) => `M${x} ${y - 6}l6 6l-6 6l-6 -6z`,
    (x, y) => `M${x} ${y - 6}l6 10h-12z`,
  ];
  const add = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    picture.append(element);
    return element;
  };
  const scale = (values) => {
    let low = Math.min(...values), high = Math.max(...values);
    if (high - low < 0.5) { low -= 0.5; high += 0.5; }
    const power = 10 ** Math.floor(Math.log10((high - low) / 4));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => (high - low) / s <= 5);
    const ticks = [];
    for (let n = Math.floor(low / step + 1e-9); n <= Math.ceil(high / step - 1e-9); n++) ticks.push(+(n * step).toFixed(6));
    return ticks;
  };
  const draw = () => {
    picture.replaceChildren();
    const a = +first.value, b = +second.value;
    const shown = runs.filter((run) => run.ap[a] !== null && run.ap[b] !== null);
    if (!shown.length) { said.textContent = "One of these labels has no positive image here."; return; }
    const xs = scale(shown.map((run) => run.ap[a])), ys = scale(shown.map((run) => run.ap[b]));
    const px = (v) => left + (v - xs[0]) / (xs.at(-1) - xs[0]) * (width - left - right);
    const py = (v) => height - bottom - (v - ys[0]) / (ys.at(-1) - ys[0]) * (height - top - bottom);
    for (const tick of ys) {
      add("line", { x1: left, x2: width - right, y1: py(tick), y2: py(tick), class: "grid" });
      add("text", { x: left - 7, y: py(tick) + 4, class: "end" }, String(tick));
    }
    for (const tick of xs) add("text", { x: px(tick), y: height - bottom + 22, class: "mid" }, String(tick));
    add("text", { x: (left + width - right) / 2, y: height - 5, class: "mid" }, `AP of ${labels[a]}`);
    shown.forEach((run) => {
      const number = runs.indexOf(run);
      const spot = add("path", { d: shapes[number % 4](px(run.ap[a]), py(run.ap[b])), class: `dot series-${number % 8 + 1}` });
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = `${run.name}: ${labels[a]} ${run.ap[a].toFixed(1)}, ${labels[b]} ${run.ap[b].toFixed(1)}`;
      spot.append(title);
    });
    const gaps = shown.map((run) => `${run.name} ${Math.abs(run.ap[a] - run.ap[b]).toFixed(1)}`);
    said.textContent = `y axis: AP of ${labels[b]}. Upper right is better. Absolute gap: ${gaps.join(", ")}.`;
  };
  [first, second].forEach((select, which) => {
    labels.forEach((label, number) => select.append(new Option(label, number, false, number === pair[which])));
    select.addEventListener("change", draw);
  });
  box.hidden = false;
  draw();
})();
