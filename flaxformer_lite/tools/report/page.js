"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const charts = read("charts"), sentences = read("sentences");
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // figure -> promise of its view

function theme() {
  const [ink, line] = dark.matches ? ["#e6edf3", "#3d444d"] : ["#1f2328", "#d1d9e0"];
  const font = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12 };
  const axis = { ...font, gridColor: line, domainColor: line, tickColor: line };
  return {
    background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, axis,
    legend: { ...font, symbolStrokeColor: ink },
    title: { color: ink, subtitleColor: ink, anchor: "start", fontSize: 14, subtitleFontSize: 12 },
    range: { category: dark.matches ? { scheme: "set2" } : { scheme: "tableau10" } },
  };
}

async function draw(figure) {
  const spec = structuredClone(charts[figure.dataset.chart]);
  if (typeof spec.width === "number") Object.assign(spec, { width: "container", autosize: { type: "fit-x", contains: "padding" } });
  if (figure.dataset.chart === "attention") spec.data = { values: chosenCells() };
  const config = theme();
  delete spec.config;
  const options = {
    ast: true, renderer: "svg", tooltip: { theme: dark.matches ? "dark" : "light" },
    actions: { export: true, source: false, compiled: false, editor: false }, config,
  };
  try {
    (await drawn.get(figure))?.finalize();
  } catch { /* it was never drawn */ }
  const view = vegaEmbed(figure, spec, options);
  drawn.set(figure, view);
  await view;
}

const inside = (panel) => [...panel.querySelectorAll("[data-chart]")];
const show = (panel) => inside(panel).filter((figure) => !drawn.has(figure)).forEach((figure) => draw(figure));

for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => {
    for (const other of document.querySelectorAll("[role=tab]")) {
      other.setAttribute("aria-selected", String(other === tab));
      document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
    show(document.getElementById(tab.getAttribute("aria-controls")));
  });
}

// Attention: the weights [layer, head, query, key] of every sentence, 16 bits each

const form = document.getElementById("attention-form");

function weightsOf(attention) {
  const bytes = Uint8Array.from(atob(attention.weights), (letter) => letter.charCodeAt(0));
  const data = new DataView(bytes.buffer);
  return (place) => data.getUint16(2 * place, true) / 65535;
}

function chosenCells() {
  const { sentence, kind, layer, head } = Object.fromEntries(new FormData(form));
  const attention = sentences[sentence].kinds[kind];
  const { queries, keys, heads } = attention, weight = weightsOf(attention);
  const picked = head === "mean" ? [...Array(heads).keys()] : [Number(head)];
  return queries.flatMap((query, t) => keys.map((key, s) => ({
    query, key,
    weight: picked.map((n) => weight(((layer * heads + n) * queries.length + t) * keys.length + s)).reduce((a, b) => a + b) / picked.length,
  })));
}

function fill(name, choices, preferred) {
  const select = form.elements[name], before = select.value || preferred;
  select.replaceChildren(...choices.map(([value, label]) => new Option(label, value)));
  select.value = choices.some(([value]) => value === before) ? before : choices.at(-1)[0];
}

function fillForm() {
  const { kinds } = sentences[form.elements.sentence.value];
  fill("kind", Object.keys(kinds).map((kind) => [kind, kind]), "cross");
  const { layers, heads } = kinds[form.elements.kind.value];
  fill("layer", Array.from({ length: layers }, (_, i) => [String(i), String(i + 1)]), String(layers - 1));
  fill("head", [["mean", "mean of all"], ...Array.from({ length: heads }, (_, i) => [String(i), String(i + 1)])], "mean");
  document.getElementById("attention-axes").textContent = {
    cross: "Rows: tokens of the translation, each as it is predicted. Columns: tokens of the source.",
    encoder: "Rows and columns: tokens that the encoder reads. A row attends to its columns.",
    decoder: "Rows and columns: tokens that the decoder has read. A row attends to its columns.",
  }[form.elements.kind.value];
}

if (form) {
  fillForm();
  form.addEventListener("change", () => {
    fillForm();
    draw(document.querySelector("[data-chart=attention]"));
  });
}

// Settings that differ

const onlyDifferences = document.getElementById("only-differences");
if (onlyDifferences) {
  const apply = () => document.getElementById("settings").classList.toggle("only", onlyDifferences.checked);
  onlyDifferences.addEventListener("change", apply);
  apply();
}

dark.addEventListener("change", () => [...drawn.keys()].forEach((figure) => draw(figure)));
show(document.getElementById("curves"));
