// Lists what openapi.json describes.

const add = (parent, tag, text = "") => {
  const element = parent.appendChild(document.createElement(tag));
  element.textContent = text;
  return element;
};
const table = (parent, title, rows) => {
  if (!rows.length) return;
  add(parent, "b", title);
  const body = add(parent, "table");
  for (const cells of rows) {
    const row = add(body, "tr");
    add(add(row, "td"), "code", cells[0]);
    add(row, "td", cells[1]);
  }
};
const show = (description) => {
  const main = document.getElementById("paths");
  main.replaceChildren();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      add(main, "h2", `${method.toUpperCase()} ${path}`);
      add(main, "div", about.description ?? "");
      table(main, "Options", (about.parameters ?? []).map((one) => [one.name, one.description ?? `in the ${one.in}`]));
      table(main, "Body", Object.keys(about.requestBody?.content ?? {}).map((kind) => [kind, ""]));
      table(main, "Answers", Object.entries(about.responses).map(([code, one]) => [code, one.description]));
    }
  }
};
const load = async () => {
  const key = document.getElementById("key").value;
  const answer = await fetch("openapi.json", { headers: key ? { "X-API-Key": key } : {} });
  document.getElementById("ask").hidden = answer.status !== 401;
  if (answer.ok) show(await answer.json());
};
document.getElementById("key").addEventListener("change", load);
load();
