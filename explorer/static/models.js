import { arrowKeys, call, el, labeled, latest, readState, select, showError, start, writeState } from "./common.js";

const FIELDS = {
  max_new: ["Maximum new tokens", { type: "number", min: 1, value: 64 }],
  temperature: ["Temperature", { type: "number", min: 0, step: 0.1, value: 0 }],
  top_p: ["Top p", { type: "number", min: 0, max: 1, step: 0.05, placeholder: "none" }],
  samples: ["Samples", { type: "number", min: 1, max: 8, value: 1 }],
  seed: ["Seed", { type: "number", min: 0, value: 0 }],
  steps: ["Unmasking steps", { type: "number", min: 1, placeholder: "one for each mask" }],
};
const EXAMPLES = {
  infill: "import <extra_id_0> as <extra_id_1>", mask: "The [MASK] is open.", unmask: "import [MASK], [MASK], [MASK]",
  blocks: "import os", continue: "import os", complete: "import os", pair: "It rains.",
};

start((content, known) => {
  if (!known.runs.length) {
    content.append(el("p", {}, "There is no run here. Train one with `pretrax train`, or give --run=RUN."));
    return;
  }
  const described = latest("model");
  const state = readState({ runs: [known.runs[0], ""], text: "", mode: "", suffix: "", second: "", options: {} });
  const text = el("textarea", { rows: 3, spellcheck: "false", oninput: () => (state.text = text.value) });
  text.value = state.text;
  const suffix = el("input", { type: "text", value: state.suffix, oninput: () => (state.suffix = suffix.value) });
  const second = el("input", { type: "text", value: state.second, oninput: () => (state.second = second.value) });
  const options = Object.entries(FIELDS).map(([name, [title, attributes]]) => {
    const given = state.options[name] ?? attributes.value ?? "";
    const box = el("input", { ...attributes, value: given, oninput: () => {
      if (box.value === "") delete state.options[name];
      else state.options[name] = Number(box.value);
    } });
    return labeled(title, box);
  });
  const order = select(known.orders.map((name) => [name, name.replaceAll("_", " ")]), state.options.order ?? "confidence",
    (name) => (state.options.order = name));
  const modes = el("select", { onchange: () => { state.mode = modes.value; showExample(); } });
  const about = el("p", { class: "soft", role: "status" });
  const results = el("div", { class: "two" });
  const answer = el("button", { type: "submit", class: "main" }, "Answer");
  const likely = el("button", { type: "button", onclick: () => eachRun(probabilities) }, "Color by probability");
  const play = el("button", { type: "button", onclick: () => eachRun(unmasked) }, "Play the unmasking");
  const first = select(known.runs.map((run) => [run, run]), state.runs[0], (run) => { state.runs[0] = run; describe(); });
  const other = select([["", "none"], ...known.runs.map((run) => [run, run])], state.runs[1], (run) => (state.runs[1] = run));

  const form = el("form", { class: "card", onsubmit: (event) => { event.preventDefault(); eachRun(answered); } },
    el("div", { class: "fields" }, labeled("Run", first), labeled("Compare with", other), labeled("Mode", modes)), about,
    labeled("Text", text, "[MASK] for a masked token, <extra_id_0> for a blank"),
    el("div", { class: "fields" }, labeled("Suffix (to write the middle)", suffix), labeled("Second text (of a pair), or an answer to color", second)),
    el("details", {}, el("summary", {}, "Options"), el("div", { class: "fields" }, ...options, labeled("Order", order))),
    el("p", {}, answer, " ", likely, " ", play));
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  content.append(form, results);

  let example = ""; // a text of the run's vocabulary
  let shownExample = "";

  function exampleOf(mode) {
    if (example === EXAMPLES.continue) return EXAMPLES[mode] ?? example;
    const blank = { infill: "<extra_id_0>", mask: "[MASK]", unmask: "[MASK]" }[mode];
    return blank ? example.slice(0, 20) + blank + example.slice(21) : example;
  }

  function showExample() {
    const isExample = [shownExample, ...Object.values(EXAMPLES)].includes(text.value);
    if (!text.value || isExample) text.value = state.text = shownExample = exampleOf(state.mode);
  }

  async function describe() {
    try {
      const model = await described({ run: state.runs[0] });
      modes.replaceChildren(...model.modes.map((mode) => el("option", { value: mode.name }, `${mode.name}: ${mode.about}`)));
      state.mode = model.modes.some((mode) => mode.name === state.mode) ? state.mode : model.mode;
      modes.value = state.mode;
      play.hidden = !model.modes.some((mode) => mode.name === "unmask");
      about.textContent = `${model.layout.replace("_", "-")}, step ${model.step.toLocaleString("en")}; trained for the mode ${model.mode}`;
      example = model.example;
      showExample();
      showError(null);
    } catch (error) {
      showError(error);
    }
  }

  async function eachRun(show) {
    writeState(state);
    const runs = state.runs.filter(Boolean);
    const places = runs.map((run) => el("section", { class: "card", "aria-busy": "true" }, el("h2", {}, run)));
    results.replaceChildren(...places);
    showError(null);
    await Promise.all(runs.map(async (run, k) => {
      const waiting = el("p", { class: "soft" }, "Computing …");
      places[k].append(waiting);
      try {
        places[k].append(...(await show(run, k === 0)));
      } catch (error) {
        places[k].append(el("p", { class: "error" }, error.message));
      }
      waiting.remove();
      places[k].setAttribute("aria-busy", "false");
    }));
  }

  function question(run) {
    return { run, mode: state.mode, text: state.text, suffix: state.suffix, second: state.second, ...state.options };
  }

  async function answered(run, isFirst) {
    let asked = question(run);
    if (!isFirst) {
      const model = await call("model", { run });
      if (!model.modes.some((mode) => mode.name === asked.mode)) asked = { ...asked, mode: model.mode };
    }
    const record = await call("answer", asked);
    const shown = record.filled ?? record.answer ?? record.text ?? record.middle;
    const parts = [el("p", { class: "soft" }, `mode ${asked.mode}`)];
    if (typeof shown === "string") parts.push(el("pre", { class: "answer" }, shown));
    for (const [name, guesses] of guessesOf(record)) parts.push(bars(name, guesses));
    parts.push(el("details", {}, el("summary", {}, "Full answer"), el("pre", {}, JSON.stringify(record, null, 2))));
    return parts;
  }

  function guessesOf(record) {
    const lists = (record.masks ?? []).map((guesses, k) => [`mask ${k + 1}`, guesses]);
    if (record.next) lists.push(["next token", record.next]);
    return lists;
  }

  function bars(name, guesses) {
    return el("div", {}, el("h3", {}, name), ...guesses.map((guess) => el("div", { class: "bar" },
      el("code", {}, JSON.stringify(guess.token)),
      el("span", { style: `--p:${guess.probability}` }), el("small", {}, guess.probability.toFixed(3)))));
  }

  async function probabilities(run) {
    const asked = state.second ? { text: state.second, context: state.text } : { text: state.text };
    const { tokens } = await call("probabilities", { run, ...asked });
    const line = el("div", { class: "flow pieces" });
    const detail = el("div", { role: "status", class: "detail" });
    for (const token of tokens) {
      const show = () => detail.replaceChildren(bars(
        `instead of ${JSON.stringify(token.token)} (${token.probability.toFixed(3)})`, token.others));
      line.append(el("button", {
        type: "button", class: "token likely", style: `--p:${token.probability}`, onmouseenter: show, onfocus: show,
        title: token.probability.toFixed(3),
        "aria-label": `${JSON.stringify(token.token)}, probability ${token.probability.toFixed(3)}`,
      }, token.token || "‥"));
    }
    arrowKeys(line, "button")();
    return [line, el("p", { class: "soft" }, "Strong colors mean likely tokens. Hover over a token for its alternatives."), detail];
  }

  async function unmasked(run) {
    const { steps, masks, tokens } = await call("unmasked", question(run));
    const line = el("div", { class: "flow pieces" });
    const range = el("input", { type: "range", min: 0, max: steps.length, value: 0, oninput: () => show(Number(range.value)) });
    const status = el("span", { class: "soft", role: "status" });
    const slots = tokens.map((token) => el("span", {}, token));
    const at = new Map(masks.map((slot, k) => [slot, k]));
    line.append(...slots);
    function show(step) {
      status.textContent = `step ${step} of ${steps.length}`;
      slots.forEach((slot, number) => {
        if (!at.has(number)) return;
        const now = step ? steps[step - 1][at.get(number)] : null;
        const before = step > 1 ? steps[step - 2][at.get(number)] : null;
        slot.textContent = now ?? "▢";
        slot.className = now === null ? "piece hidden" : now !== before ? "piece new" : "piece c0";
      });
    }
    show(0);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const advance = () => {
      if (!range.isConnected && Number(range.value)) return;
      if (Number(range.value) >= steps.length) return;
      range.value = Number(range.value) + 1;
      show(Number(range.value));
      setTimeout(advance, 350);
    };
    if (!still) setTimeout(advance, 350);
    const again = el("button", { type: "button", onclick: () => { range.value = 0; show(0); setTimeout(advance, 350); } }, "Play again");
    return [line, labeled("Step", range), el("p", {}, again, " ", status)];
  }

  describe();
});
