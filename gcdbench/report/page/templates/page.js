"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const SPLITS = ["All", "Old", "New"];

/* Make an element: attributes, then children (texts or elements). */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}
function svg(markup, width, height) {
  const holder = make("span");
  holder.innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" aria-hidden="true">${markup}</svg>`;
  return holder.firstChild;
}
const fixed = (value, digits = 1) => (value === null ? "–" : value.toFixed(digits));
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
const colour = (method) => `m${Object.keys(data.methods).indexOf(method)}`;

/* Theme: the system's, unless one was chosen here before. */
const root = document.documentElement;
const store = { get() { try { return localStorage.getItem("gcdbench-theme"); } catch { return null; } },
                set(value) { try { localStorage.setItem("gcdbench-theme", value); } catch { /* a file may not store */ } } };
if (store.get()) root.dataset.theme = store.get();
$("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  store.set(root.dataset.theme);
});

/* Leaderboard: split, dataset, filter, sort. */
const board = $("#board"), controls = $("#controls"), status = $("#status");
const state = { sort: null, down: true };
function current() { return SPLITS.indexOf(board.dataset.split); }
function valueOf(row, key) {
  if (key === "method") return row.dataset.title.toLowerCase();
  const parts = $(`td[data-sort="${CSS.escape(key)}"]`, row).dataset.v.split("|");
  const text = parts.length > 1 ? parts[current()] : parts[0];
  return text === "" ? null : Number(text);
}
function sortRows() {
  if (!state.sort) return;
  const rows = $$("tbody tr", board), direction = state.down ? -1 : 1;
  rows.sort((a, b) => {
    const x = valueOf(a, state.sort), y = valueOf(b, state.sort);
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * direction;
  });
  $("tbody", board).append(...rows);
}
function apply() {
  const form = new FormData(controls), words = form.get("filter").trim().toLowerCase();
  board.dataset.split = form.get("split");
  board.toggleAttribute("data-nostd", !form.get("std"));
  board.toggleAttribute("data-delta", Boolean(form.get("delta")));
  for (const cell of $$("[data-dataset]", board)) cell.hidden = form.get("dataset") !== "" && cell.dataset.dataset !== form.get("dataset");
  let shown = 0;
  for (const row of $$("tbody tr", board)) {
    row.hidden = !`${row.dataset.title} ${row.dataset.method}`.toLowerCase().includes(words);
    shown += !row.hidden;
  }
  sortRows();
  status.textContent = words ? `${shown} of ${$$("tbody tr", board).length} methods shown` : "";
}
controls.addEventListener("input", apply);
controls.addEventListener("submit", (event) => event.preventDefault());
board.tHead.addEventListener("click", (event) => {
  const button = event.target.closest(".sort");
  if (!button) return;
  const key = button.dataset.sort;
  state.down = state.sort === key ? !state.down : key !== "method";
  state.sort = key;
  for (const head of $$("[aria-sort]", board)) head.removeAttribute("aria-sort");
  button.parentElement.setAttribute("aria-sort", state.down ? "descending" : "ascending");
  sortRows();
  status.textContent = `sorted by ${button.textContent}, ${key === "method" ? (state.down ? "from Z" : "from A") : state.down ? "best first" : "worst first"}`;
});

/* Cells: one of them is in the tab order, arrow keys go to the others. */
const cells = () => $$(".cell", board).filter((cell) => cell.offsetParent);
for (const [place, cell] of $$(".cell", board).entries()) cell.tabIndex = place ? -1 : 0;
board.addEventListener("keydown", (event) => {
  const cell = event.target.closest(".cell");
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!cell || !step) return;
  event.preventDefault();
  const rows = $$("tbody tr", board).filter((row) => !row.hidden).map((row) => $$(".cell", row).filter((one) => one.offsetParent));
  const row = rows.findIndex((one) => one.includes(cell)), column = rows[row].indexOf(cell);
  const goal = rows[Math.min(rows.length - 1, Math.max(0, row + step[0]))][Math.min(rows[row].length - 1, Math.max(0, column + step[1]))];
  for (const one of cells()) one.tabIndex = -1;
  goal.tabIndex = 0;
  goal.focus();
});

/* Provenance on hover and focus. */
const tip = $("#tip");
function describe(key) {
  const [method, dataset, set] = key.split("|"), split = board.dataset.split;
  const [mean, std, low, high, seeds, planned, rank, paper, delta, impossible] = data.numbers[key][split];
  const lines = [`${data.methods[method]} · ${data.datasets[dataset].title} · ${data.datasets[dataset].sets[set].title} ${split}`];
  const runs = data.cells[`${method}|${dataset}`] || [];
  if (!runs.length) return lines.concat(`not recorded (0 of ${planned} seeds)`).join("\n");
  lines.push(`mean ${fixed(mean, 2)}${std === null ? "" : `, deviation ${fixed(std, 2)}`}, rank ${rank}`);
  if (low !== null) lines.push(`95% interval ${fixed(low)} to ${fixed(high)}`);
  const place = SPLITS.indexOf(split);
  lines.push(...runs.map((run) => `seed ${run.seed}: ${run.sets[set] ? fixed(run.sets[set][place], 2) : "–"}`));
  if (seeds < planned) lines.push(`${seeds} of ${planned} seeds`);
  if (paper !== null) lines.push(`paper ${fixed(paper)} (${signed(delta)})${impossible ? ", an impossible triple" : ""}`);
  const made = data.provenance[runs[0].provenance];
  lines.push([made["git.commit"] && `commit ${made["git.commit"].slice(0, 10)}${made["git.dirty"] ? ", changed" : ""}`, made.device].filter(Boolean).join(" · "));
  return lines.join("\n");
}
function show(event) {
  const cell = event.target.closest?.(".cell");
  if (!cell) return;
  tip.textContent = describe(cell.dataset.key);
  tip.hidden = false;
  cell.setAttribute("aria-describedby", "tip");
  const box = cell.getBoundingClientRect(), left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
}
function hide(event) { event.target.closest?.(".cell")?.removeAttribute("aria-describedby"); tip.hidden = true; }
for (const name of ["mouseover", "focusin"]) board.addEventListener(name, show);
for (const name of ["mouseout", "focusout"]) board.addEventListener(name, hide);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

/* Details of a cell: all seeds of a method on a dataset. */
const dialog = $("#details");
board.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell || cell.hasAttribute("data-missing")) return;
  const [method, dataset] = cell.dataset.key.split("|");
  tip.hidden = true;
  open(method, dataset, 0);
  dialog.showModal();
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
function open(method, dataset, number) {
  const runs = data.cells[`${method}|${dataset}`], run = runs[number];
  $("#details-title").textContent = `${data.methods[method]} on ${data.datasets[dataset].title}`;
  const choose = make("fieldset", { class: "segments" }, make("legend", {}, "Seed"),
    ...runs.map((one, place) => {
      const input = make("input", { type: "radio", name: "run", value: place });
      input.checked = place === number;
      input.addEventListener("change", () => { open(method, dataset, place); $$("input[name=run]", dialog)[place].focus(); });
      return make("label", {}, input, make("span", {}, String(one.seed)));
    }));
  $("#details-body").replaceChildren(make("form", { class: "controls" }, choose),
    make("h3", {}, "Scores"), scores(run, dataset), make("h3", {}, "Learning curve"), curve(run.curve),
    make("h3", {}, "Settings"), pairs(data.settings[run.settings]),
    make("h3", {}, "Provenance"), pairs({ key: run.key, ...data.provenance[run.provenance],
      "wall time": run.seconds === null ? null : `${fixed(run.seconds)} s`, "peak memory": run.memory === null ? null : `${fixed(run.memory, 0)} MB` }),
    ...(run.log.length ? [make("h3", {}, "End of the log"), make("pre", { tabindex: "0" }, run.log.join("\n"))] : []));
}
function scores(run, dataset) {
  const known = data.datasets[dataset].sets;
  const head = make("tr", {}, ...["", "All", "Old", "New", "NMI", "ARI", "images"].map((title) => make("th", { scope: "col" }, title)));
  const rows = Object.entries(run.sets).map(([name, values]) => make("tr", {},
    make("th", { scope: "row", class: "word" }, known[name] ? `${known[name].title} (${known[name].role})` : name.replaceAll("_", " ")),
    ...values.map((value, place) => make("td", {}, place === 5 ? String(value ?? "–") : fixed(value)))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}
function curve(lines) {
  const rows = Object.entries(lines.terms).map(([name, values]) => {
    const known = values.filter((value) => value !== null), low = Math.min(...known), span = Math.max(...known) - low || 1;
    const points = values.map((value, place) => value === null ? null : `${(2 + 146 * place / Math.max(1, values.length - 1)).toFixed(1)},${(23 - 20 * (value - low) / span).toFixed(1)}`);
    const picture = svg(`<polyline class="none axis" points="${points.filter(Boolean).join(" ")}"/>`, 150, 26);
    const ends = [values[0], values[values.length - 1]].map((value) => make("td", {}, fixed(value, 3)));
    return make("tr", {}, make("th", { scope: "row", class: "word" }, name.replaceAll("_", " ")), make("td", { class: "spark" }, picture), ...ends);
  });
  if (!rows.length) return make("p", { class: "note" }, "No curve was recorded.");
  const titles = ["loss term", `epochs ${lines.epochs[0]} to ${lines.epochs[lines.epochs.length - 1]}`, "first", "last"];
  const head = make("tr", {}, ...titles.map((title, place) => make("th", { scope: "col", class: place ? "" : "word" }, title)));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}
function pairs(values) {
  const shown = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return make("dl", { class: "pairs" }, ...shown.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, Array.isArray(value) ? value.join(", ") : String(value))]));
}

/* Figures: a chip hides its method in all of them. */
for (const chip of $$(".chip")) {
  chip.addEventListener("click", () => {
    const visible = chip.getAttribute("aria-pressed") === "false";
    chip.setAttribute("aria-pressed", String(visible));
    for (const group of $$(`#figures g.m${chip.dataset.method}`)) group.style.display = visible ? "" : "none";
  });
}

/* Two methods, image by image. */
const pair = $("#pair"), field = (name) => pair.elements[name];
function fill(select, entries, wanted) {
  select.replaceChildren(...entries.map(([value, title]) => make("option", { value }, title)));
  if (entries.some(([value]) => value === wanted)) select.value = wanted;
}
function bits(text, count) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return Array.from({ length: count }, (_, place) => (bytes[place >> 3] >> (7 - (place & 7))) & 1);
}
function choices() {
  const dataset = field("dataset").value, sets = data.images[dataset]?.sets || {};
  fill(field("set"), Object.keys(sets).map((name) => [name, data.datasets[dataset].sets[name].title]), field("set").value);
  const right = sets[field("set").value]?.right || {};
  const seeds = (method) => Object.keys(right).filter((key) => key.startsWith(`${method}|`)).map((key) => key.split("|")[1]);
  const second = new Set(seeds(field("second").value));
  const common = seeds(field("first").value).filter((seed) => second.has(seed));
  fill(field("seed"), common.map((seed) => [seed, seed]), field("seed").value);
}
function compare() {
  choices();
  const [first, second, dataset, name, seed] = ["first", "second", "dataset", "set", "seed"].map((one) => field(one).value);
  const outcome = $("#outcome"), classes = $("#classes"), images = data.images[dataset];
  classes.replaceChildren();
  if (!seed) { outcome.replaceChildren(make("p", {}, "These two have no predictions for the same seed here.")); return; }
  const set = images.sets[name];
  const a = bits(set.right[`${first}|${seed}`], set.shown), b = bits(set.right[`${second}|${seed}`], set.shown);
  let at = 0;
  const groups = set.groups.map((group, number) => {
    const places = group.ids.map((id, place) => ({ id: group.start + id + group.end, a: a[at + place], b: b[at + place] }));
    at += group.ids.length;
    const of = (x, y) => places.filter((one) => one.a === x && one.b === y).map((one) => one.id);
    return { name: images.classes[number], old: number < images.old, first: of(1, 0), both: of(1, 1), neither: of(0, 0), second: of(0, 1) };
  }).filter((group) => group.first.length + group.both.length + group.neither.length + group.second.length);
  outcome.replaceChildren(...summary(groups, first, second, set));
  const share = (group) => (group.first.length - group.second.length);
  const order = field("order").value;
  if (order === "gain") groups.sort((x, y) => share(y) - share(x));
  if (order === "hard") groups.sort((x, y) => y.neither.length - x.neither.length);
  classes.replaceChildren(...groups.map((group) => row(group, first, second)));
}
function summary(groups, first, second, set) {
  const kinds = [["first", `only ${data.methods[first]}`, `only ${colour(first)}`], ["both", "both", "both"], ["neither", "neither", "neither"], ["second", `only ${data.methods[second]}`, `only ${colour(second)}`]];
  const count = (side, kind) => groups.filter((group) => side === "All" || group.old === (side === "Old")).reduce((sum, group) => sum + group[kind].length, 0);
  const lines = SPLITS.flatMap((side) => {
    const total = kinds.reduce((sum, [kind]) => sum + count(side, kind), 0);
    if (!total) return [];
    const parts = kinds.map(([kind, title, style]) => {
      const number = count(side, kind), width = 100 * number / total;
      return make("span", { class: style, style: `width:${width.toFixed(3)}%`, title: `${title}: ${number}` }, width > 5 ? String(number) : "");
    });
    return [make("span", {}, side), make("div", { class: "stack" }, ...parts)];
  });
  const sentence = `${data.methods[first]} alone is right on ${count("All", "first")} images, ${data.methods[second]} alone on ${count("All", "second")}; both on ${count("All", "both")}, neither on ${count("All", "neither")}.`;
  const thinned = set.shown < set.of ? ` ${set.shown} of ${set.of} images are shown.` : "";
  return [make("p", {}, sentence + thinned), make("ul", { class: "key" }, ...kinds.map(([, title, style]) => make("li", {}, make("i", { class: style }), title))), make("div", { class: "split" }, ...lines)];
}
function row(group, first, second) {
  const kinds = [["first", `fill ${colour(first)}`], ["both", "sq-both"], ["neither", "sq-neither"], ["second", `fill ${colour(second)}`]];
  const across = innerWidth < 640 ? 28 : 44, total = kinds.reduce((sum, [kind]) => sum + group[kind].length, 0);
  let place = 0;
  const paths = kinds.map(([kind, style]) => {
    const steps = group[kind].map(() => { const x = 7 * (place % across), y = 7 * Math.floor(place / across); place += 1; return `M${x + .5} ${y + .5}h5v5h-5z`; });
    return steps.length ? `<path class="${style}" d="${steps.join("")}"/>` : "";
  });
  const gain = group.first.length - group.second.length;
  const lists = kinds.filter(([kind]) => group[kind].length).map(([kind]) => make("p", { class: "ids" },
    make("b", {}, { first: `only ${data.methods[first]}`, second: `only ${data.methods[second]}`, both: "both", neither: "neither" }[kind]), ` ${group[kind].join(", ")}`));
  return make("details", {}, make("summary", {},
    make("span", {}, group.name.replaceAll("_", " "), " ", make("small", {}, group.old ? "old" : "new")),
    svg(paths.join(""), 7 * Math.min(across, total), 7 * Math.ceil(total / across)),
    make("span", { class: "gain" }, gain ? `${gain < 0 ? "−" : "+"}${Math.abs(gain)}` : "0")), ...lists);
}
const listed = $$("tbody tr", board).map((one) => one.dataset.method);
for (const [place, name] of ["first", "second"].entries()) fill(field(name), listed.map((method) => [method, data.methods[method]]), listed[Math.min(place, listed.length - 1)]);
fill(field("dataset"), Object.keys(data.images).map((name) => [name, data.datasets[name].title]));
pair.addEventListener("input", compare);
pair.addEventListener("submit", (event) => event.preventDefault());
compare();
})();
