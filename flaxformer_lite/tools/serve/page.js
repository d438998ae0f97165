"use strict";
const $ = (id) => document.getElementById(id);
const place = $("place"), ask = $("ask"), heads = $("heads");
let runs = [], requests = {}, task = "", running = null, weights = null;

// Tasks: the text's hint, the options [name, label, value, step], and what to do with an answer.

const TASKS = {
  translate: {
    verb: "Translate",
    hint: "One text on each line. A term on each line of its field: the text of a source = the text that its translation then has.",
    options: (run) => [
      ...languageFields(run), ["beam_size", "beam size", run.beam_size, 1], ["num_hypotheses", "translations of each", 1, 1],
      ...(run.named_languages ? [] : [
        ["terms", "terms", "", "textarea", "dog = Hund"], ["placeholders", "keep <tags>, {names}, %s, addresses", "", "checkbox"],
        ["prefix", "each begins with", "", "text"],
      ]),
    ],
    ask: async (text, { terms, ...options }) => {
      const asked = { texts: lines(text), ...options, ...(terms ? { terms: termsOf(terms) } : {}) };
      showTranslations(lines(text), await post("/api/translate", asked), { from: options.from, to: options.to });
    },
  },
  generate: {
    verb: "Continue",
    hint: "The text to continue.",
    options: () => [
      ["max_new_tokens", "new tokens", 50, 1], ["temperature", "temperature", "", 0.1], ["top_k", "top k", "", 1],
      ["top_p", "top p", "", 0.05], ["seed", "seed", "", 1],
    ],
    ask: async (text, options) => {
      const into = written(text);
      await stream("/api/generate", { texts: text, ...options, stream: true }, (part) => into.append(part.finish ? "" : part.text));
      $("answer").append(attentionButton(text, into.textContent));
    },
  },
  chat: {
    verb: "Send",
    hint: "A message; the conversation is kept until you choose another run.",
    options: () => [["max_tokens", "new tokens", 200, 1], ["temperature", "temperature", "", 0.1], ["seed", "seed", "", 1]],
    ask: async (text, options) => {
      conversation.push({ role: "user", content: text });
      const into = written(`${text}\n`, true), answer = { role: "assistant", content: "" };
      try {
        await stream("/v1/chat/completions", { model: currentRun().name, messages: conversation, ...options, stream: true }, (part) => {
          const more = part.choices[0]?.delta.content ?? "";
          answer.content += more;
          into.append(more);
        });
        conversation.push(answer);
        ask.elements.text.value = "";
      } catch (error) {
        conversation.pop();
        throw error;
      }
    },
  },
  "fill-mask": {
    verb: "Predict",
    hint: "Write [MASK] in place of each token to predict.",
    options: () => [["top", "candidates", 5, 1]],
    ask: async (text, options) => {
      const masks = (await post("/api/fill-mask", { texts: [text], ...options })).answers[0];
      masks.forEach((mask, i) => bars(`mask ${i + 1}`, mask.map((c) => [c.token, c.probability])));
      $("answer").append(attentionButton(text));
    },
  },
  classify: {
    verb: "Classify",
    hint: "One text on each line; a tab separates the two texts of a pair.",
    options: () => [],
    ask: async (text) => {
      const texts = lines(text).map((line) => (line.includes("\t") ? line.split("\t").slice(0, 2) : line));
      const { answers } = await post("/api/classify", { texts });
      answers.forEach((answer, i) => {
        const scores = Object.entries(answer.scores).sort((a, b) => b[1] - a[1]);
        if (scores.length) bars(lines(text)[i], scores.map(([name, p]) => [answer.labels.includes(name) ? `✓ ${name}` : name, p]));
        else table(["text", "value"], [[lines(text)[i], answer.score.toFixed(4)]]);
        if (typeof texts[i] === "string" && !currentRun().reads_target) $("answer").append(attentionButton(texts[i]));
      });
    },
  },
  label: {
    verb: "Label",
    hint: "One text on each line.",
    options: () => [],
    ask: async (text) => {
      const { answers } = await post("/api/label", { texts: lines(text) });
      for (const answer of answers) {
        const block = add("p", "", "written"), characters = [...answer.text];  // places count code points
        let end = 0;
        for (const span of answer.spans) {
          const entity = make("mark", characters.slice(span.start, span.end).join(""));
          entity.append(make("sub", ` ${span.label}`));
          entity.title = `${span.label}: ${span.score.toFixed(4)}`;
          block.append(characters.slice(end, span.start).join(""), entity);
          end = span.end;
        }
        block.append(characters.slice(end).join(""));
      }
      const rows = answers.flatMap((answer) => answer.spans.map((span) => [[...answer.text].slice(span.start, span.end).join(""), span.label, span.score.toFixed(4)]));
      if (rows.length) table(["entity", "label", "probability"], rows);
    },
  },
  rank: {
    verb: "Rank",
    hint: "The first line is a query, the others are candidates.",
    options: () => [],
    ask: async (text) => {
      const [query, ...candidates] = lines(text), { answers } = await post("/api/rank", { query, candidates });
      table(["", "candidate", "score"], answers.map(({ index, score }, i) => [String(i + 1), candidates[index], score.toFixed(4)]));
      if (!currentRun().reads_target) $("answer").append(attentionButton(query));
    },
  },
  embed: {
    verb: "Compare",
    hint: "Several lines: how similar each is to each (cosine).",
    options: () => [],
    ask: async (text) => {
      const texts = lines(text), vectors = (await post("/api/embed", { texts })).answers;
      const unit = vectors.map((v) => { const n = Math.hypot(...v) || 1; return v.map((x) => x / n); });
      const similar = unit.map((a) => unit.map((b) => a.reduce((sum, x, i) => sum + x * b[i], 0)));
      heatMap($("answer"), texts, texts.map((_, i) => String(i + 1)), similar);
      if (!currentRun().reads_target) $("answer").append(...texts.map((text, i) => attentionButton(text, undefined, `attention of ${i + 1}`)));
      add("p", `${vectors[0].length} numbers each; the first text begins ${vectors[0].slice(0, 4).map((x) => x.toFixed(3)).join(", ")}, …`, "note");
    },
  },
};
let conversation = [];

// A task without a form above: a field for each value of its request's JSON schema, and a table of the answers.

const formOf = (name) => TASKS[name] ?? schemaForm(name, requests[name]);

function schemaForm(name, schema) {
  const kinds = (one) => (one.anyOf ?? [one]).map((kind) => schema.$defs?.[kind.$ref?.split("/").pop()] ?? kind);
  const types = (one) => kinds(one).map((kind) => kind.type);
  const fields = Object.entries(schema.properties).filter(([field]) => field !== "run").flatMap(([field, one]) => {
    const parts = kinds(one).find((kind) => kind.properties)?.properties;
    return parts ? Object.entries(parts).map(([part, of]) => [`${field}.${part}`, field, part, of]) : [[`.${field}`, "", field, one]];
  });
  const step = (one) => {
    if (types(one).includes("boolean")) return "checkbox";
    return types(one).includes("integer") ? 1 : types(one).includes("number") ? 0.01 : "textarea";
  };
  return {
    verb: "Ask",
    hint: schema.description?.split("\n")[0] ?? "",
    options: () => fields.map(([id, , part, one]) => [id, part, one.default ?? "", step(one), types(one).includes("array") ? "one on each line" : ""]),
    ask: async (text, options) => {
      const asked = {};
      for (const [id, field, part, one] of fields) {
        const given = options[id], into = field ? (asked[field] ??= {}) : asked;
        if (given !== undefined) into[part] = types(one).includes("array") ? lines(given) : given;
      }
      const rows = [(await post(`/api/${name}`, asked)).answers].flat(2).map((row) => (Object(row) === row ? row : { answer: row }));
      const head = [...new Set(rows.flatMap(Object.keys))];
      table(head, rows.map((row) => head.map((key) => shown(row[key] ?? ""))));
    },
  };
}

function shown(value) {
  if (typeof value === "string") return value;
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(4) : JSON.stringify(value);
}

// The server

async function request(path, body) {
  const headers = { "Content-Type": "application/json" }, token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body), signal: running?.signal };
  const response = await fetch(path, options);
  if (response.ok) return response;
  if (response.status === 401) $("token").hidden = false;
  throw new Error((await response.json()).error.message);
}

const post = async (path, body) => (await request(path, { ...(path.startsWith("/api") ? { run: currentRun().name } : {}), ...body })).json();

async function stream(path, body, part) {
  const response = await request(path, path.startsWith("/api") ? { run: currentRun().name, ...body } : body);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events.map((text) => text.replace(/^data: /, ""))) {
      if (event === "[DONE]") continue;
      const content = JSON.parse(event);
      if (content.error) throw new Error(content.error.message);
      part(content);
    }
  }
}

// What is shown: always as text, never as HTML

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function add(tag, text, name) {
  const element = make(tag, text, name);
  $("answer").append(element);
  return element;
}

const termsOf = (text) => Object.fromEntries(lines(text).map((line) => {
  const [source, ...target] = line.split("=");
  return [source.trim(), target.join("=").trim()];
}));

const lines = (text) => text.split("\n").filter((line) => line.trim());

function written(given, keep = false) {
  if (!keep) $("answer").replaceChildren();
  const block = add("p", "", "written"), answer = make("span");
  block.append(make("span", given, "given"), answer);
  return answer;
}

function table(head, rows) {
  const whole = make("table"), scroll = add("div", "", "scroll"), first = make("tr");
  first.append(...head.map((cell) => make("th", cell)));
  whole.append(first, ...rows.map((cells) => {
    const row = make("tr");
    row.append(...cells.map((cell) => {
      if (cell instanceof Node) { const around = make("td"); around.append(cell); return around; }
      return make("td", cell);
    }));
    return row;
  }));
  scroll.append(whole);
}

function bars(title, entries) {
  add("h3", title);
  table(["", "probability"], entries.map(([name, share]) => {
    const cell = make("span"), bar = make("span", "", "bar");
    bar.style.width = `${Math.round(160 * share)}px`;
    cell.append(bar, share.toFixed(4));
    return [name, cell];
  }));
}

function showTranslations(texts, { answers, warnings = [] }, direction) {
  warnings.forEach((line) => add("p", `Warning: ${line}`, "error"));
  table(["text", "translation", "score", ""], texts.flatMap((text, i) => answers[i].map((answer, n) => {
    return [n ? "" : text, answer.text, answer.score.toFixed(4), attentionButton(text, answer.text, "attention", direction)];
  })));
  add("p", "Score: the logarithm of the translation's probability, scaled for its length as the run decodes; nearer to 0 is more probable.", "note");
}

function attentionButton(source, target, label = "attention", direction = {}) {
  const button = make("button", label);
  button.addEventListener("click", () => work(() => showAttention(source, target, direction)));
  return button;
}

const AXES = {
  cross: "Rows: tokens of the answer, each as it is predicted. Columns: tokens of the text.",
  decoder: "Rows: tokens of the prompt and of the answer. Columns: the tokens that each attends to.",
  encoder: "Rows: tokens of the text. Columns: the tokens that each attends to.",
};

async function showAttention(source, target, direction) {
  weights = await post("/api/attention", { source, target, ...direction });
  $("axes").textContent = `${AXES[weights.kind]} Stronger colours are larger weights.`;
  const layers = weights.weights.length, count = weights.weights[0].length;
  heads.elements.layer.replaceChildren(...weights.weights.map((_, i) => new Option(i + 1, i)));
  heads.elements.layer.value = layers - 1;
  heads.elements.head.replaceChildren(new Option("mean of all", "mean"), ...Array.from({ length: count }, (_, i) => new Option(i + 1, i)));
  $("attention").hidden = false;
  drawAttention();
}

function drawAttention() {
  const layer = weights.weights[heads.elements.layer.value], head = heads.elements.head.value;
  const picked = head === "mean" ? layer : [layer[head]];
  const mean = weights.rows.map((_, t) => weights.columns.map((_, s) => picked.reduce((sum, h) => sum + h[t][s], 0) / picked.length));
  $("map").replaceChildren();
  heatMap($("map"), weights.rows, weights.columns, mean);
}

function heatMap(into, rows, columns, values) {
  const scroll = make("div", "", "scroll"), whole = make("table", "", "map"), head = make("thead"), first = make("tr");
  const visible = (piece) => piece.replaceAll(" ", "␣").replaceAll("\n", "⏎");
  first.append(make("th"), ...columns.map((column) => make("th", visible(column))));
  head.append(first);
  whole.append(head, ...rows.map((row, t) => {
    const line = make("tr");
    line.append(make("th", visible(row)), ...columns.map((column, s) => {
      const cell = make("td");
      cell.style.setProperty("--w", Math.max(0, Math.min(1, values[t][s])).toFixed(3));
      cell.title = `${row} → ${column}: ${values[t][s].toFixed(3)}`;
      return cell;
    }));
    return line;
  }));
  scroll.append(whole);
  into.append(scroll);
}

// The form

const currentRun = () => runs.find((run) => run.name === place.elements.run.value);

function chooseRun() {
  const run = currentRun(), tasks = [...run.tasks, ...(run.chat ? ["chat"] : [])];
  conversation = [];
  $("about").textContent = run.about;
  $("tasks").replaceChildren(...tasks.map((name) => {
    const tab = make("button", name);
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => chooseTask(name));
    return tab;
  }));
  chooseTask(tasks[0]);
}

function chooseTask(name) {
  task = name;
  for (const tab of $("tasks").children) tab.setAttribute("aria-selected", String(tab.textContent === name));
  const form = formOf(name);
  ask.elements.text.hidden = !(name in TASKS);
  $("hint").textContent = form.hint;
  $("go").textContent = form.verb;
  $("options").replaceChildren(...form.options(currentRun()).map(([option, label, value, step, example = ""]) => {
    const around = make("label", `${label} `), input = make(Array.isArray(step) ? "select" : step === "textarea" ? step : "input");
    if (Array.isArray(step)) input.replaceChildren(...step.map((code) => make("option", code)));
    else if (typeof step === "number") Object.assign(input, { type: "number", min: 0, step, placeholder: "default" });
    else if (step === "textarea") Object.assign(input, { rows: 2, placeholder: example });
    else input.type = step;
    Object.assign(input, { name: option, value });
    around.append(input);
    return around;
  }));
  $("answer").replaceChildren();
  $("attention").hidden = true;
}

// The menus of a run that translates between several languages, or the languages that a decoder's prompt names. In place of a step,
// a list makes a menu, a word names the field's type.

function languageFields(run) {
  if (run.named_languages) return Object.entries(run.named_languages).map(([name, value]) => [name, name, value, "text"]);
  if (!run.languages) return [];
  const { codes, source, direction } = run.languages, [from, to] = direction.length ? direction : [codes[0], codes[1] ?? codes[0]];
  return [...(source === "none" ? [] : [["from", "from", from, codes]]), ["to", "to", to, codes]];
}

async function work(action) {
  running?.abort();
  const own = (running = new AbortController()), started = performance.now();
  $("go").disabled = true;
  $("stop").hidden = false;
  $("state").className = "note";
  $("state").textContent = "the model computes; the first answer of its kind takes longer …";
  try {
    await action();
    $("state").textContent = `${((performance.now() - started) / 1000).toFixed(2)} s`;
    $("state").className = "note done";
  } catch (error) {
    $("state").textContent = own.signal.aborted ? "stopped" : error.message;
    if (!own.signal.aborted) $("state").className = "error";
  }
  if (running === own) {
    running = null;
    $("go").disabled = false;
    $("stop").hidden = true;
  }
}

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  if (task !== "chat") $("answer").replaceChildren();
  $("attention").hidden = true;
  const inputs = [...$("options").querySelectorAll("input, select, textarea")].filter((input) => input.checked || (input.type !== "checkbox" && input.value !== ""));
  const valueOf = (input) => ({ number: Number(input.value), checkbox: true })[input.type] ?? input.value;
  work(() => formOf(task).ask(ask.elements.text.value, Object.fromEntries(inputs.map((input) => [input.name, valueOf(input)]))));
});
ask.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask.requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
heads.addEventListener("change", drawAttention);
place.elements.run.addEventListener("change", chooseRun);
place.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", place.elements.token.value);
  $("token").hidden = true;
  start();
});

async function start() {
  try {
    ({ runs, requests } = await (await request("/api/runs")).json());
    place.elements.run.replaceChildren(...runs.map((run) => new Option(run.name, run.name)));
    $("state").textContent = "";
    chooseRun();
  } catch (error) {
    $("state").className = "error";
    $("state").textContent = error.message;
  }
}

start();
