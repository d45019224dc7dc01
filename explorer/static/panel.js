// The text form, and the panel of one objective: its settings, its picture and its commands.

import { FOX, arrowKeys, call, copyable, debounced, el, labeled, select, showError, uniqueId, vocabularies } from "./common.js";

// The text, the vocabulary and the draw, which panels share. `onchange` is called after a change.
export function textForm(state, known, onchange) {
  const later = debounced(onchange, 400);
  const set = (name, value, act = onchange) => {
    state[name] = value;
    if (name === "text" || name === "vocabulary") state.hidden = "";
    act();
  };
  const text = el("textarea", { rows: 3, spellcheck: "false", oninput: () => set("text", text.value, later) });
  text.value = state.text;
  const seed = el("input", {
    type: "number", name: "seed", min: 0, value: state.seed, oninput: () => set("seed", Number(seed.value), later),
  });
  const next = el("button", { type: "button", onclick: () => {
    seed.value = Number(seed.value) + 1;
    set("seed", Number(seed.value));
  } }, "Another draw");
  const rows = select([1, 2, 3, 4, 6, 8].map((n) => [n, n]), state.rows, (n) => set("rows", Number(n)));
  const lengths = [128, 256, 512, 1024, 2048];
  const length = select(lengths.map((n) => [n, n]), state.length, (n) => set("length", Number(n)));
  async function takeText(name, body) {
    try {
      const found = await call(name, body);
      text.value = state.text = [...found.text].slice(0, 2000).join("");  // does not split an emoji
      showError(null);
      return true;
    } catch (error) {
      showError(error);
      return false;
    }
  }
  async function setVocabulary(name) {
    // The vocabulary of a run on DNA lacks the letters of the example.
    if (text.value === FOX && known.runs.includes(name)) await takeText("known_text", { run: name, text: FOX });
    set("vocabulary", name);
  }
  const fields = [
    labeled("Vocabulary", select(vocabularies(known), state.vocabulary, setVocabulary)),
    labeled("Seed", seed),
    labeled("Draws", rows),
    labeled("Slots", length),
    next,
  ];
  if (known.runs.length) {
    let number = 0;
    const run = select(known.runs.map((name) => [name, name]), known.runs[0], () => (number = 0));
    const take = el("button", { type: "button", onclick: async () => {
      if (!(await takeText("document", { run: run.value, number }))) return;
      number += 1;
      set("text", text.value);
    } }, "Take its next document");
    fields.push(labeled("Text of a run", run), take);
  }
  return el("form", { class: "card", onsubmit: (event) => event.preventDefault() },
    labeled("Text", text, "A blank line begins another document of the same row."),
    el("div", { class: "fields" }, ...fields));
}

export class ObjectivePanel {
  // `state` is that of the text form; `own` has the objective and its values.
  constructor(state, own, onchange) {
    this.state = state;
    this.own = own;
    this.onchange = onchange;
    this.controls = el("form", { class: "controls", onsubmit: (event) => event.preventDefault() });
    this.title = el("h2");
    this.about = el("div", { class: "soft" });
    this.text = el("div", { class: "tokens", role: "group", "aria-label": "Text: choose tokens to hide" });
    this.body = el("div", {});
    this.statistics = el("div", {});
    this.commands = el("div", {});
    this.status = el("span", { class: "soft", role: "status" });
    this.random = el("button", { type: "button", onclick: () => this.hideRandom() }, "Hide random tokens again");
    this.stopAt = arrowKeys(this.text, "[data-token]");
    this.text.addEventListener("click", (event) => this.choose(event));
    this.later = debounced(() => this.draw(), 120);
    const count = el("button", { type: "button", onclick: () => this.count(count) }, "Count a thousand rows");
    const published = el("button", { type: "button", onclick: () => this.change(this.own.objective) }, "Settings as published");
    const settings = el("details", { class: "card settings", open: true }, el("summary", {}, "Settings"), this.controls, published);
    const ways = el("details", { class: "card", open: true },
      el("summary", {}, "Get this view from a command, a gin file or Python"), this.commands);
    this.element = el("section", { class: "panel", "aria-busy": "false" },
      this.title, this.about,
      el("div", { class: "workbench" },
        el("div", { class: "picture" },
          el("div", { class: "card" },
            el("h3", {}, "Text ", el("small", {}, "choose tokens to hide them instead of random ones")),
            this.text, el("p", {}, this.random, " ", this.status)),
          this.body, el("p", {}, count), this.statistics),
        settings),
      ways);
  }

  view() {
    const { objective, values } = this.own;
    const { text, vocabulary, seed, rows, length, hidden } = this.state;
    return { objective, values, text, vocabulary, seed, rows, length, hidden };
  }

  // Shows an objective with the settings of its gin file. The previous one is cleared first, so that nothing
  // of it remains if this one fails.
  change(objective) {
    this.own.objective = objective;
    this.own.values = {};
    this.names = undefined;
    this.title.textContent = objective;
    for (const part of [this.about, this.text, this.body, this.statistics, this.controls, this.commands]) part.replaceChildren();
    this.draw();
  }

  async draw() {
    this.request?.abort();
    this.request = new AbortController();
    const began = performance.now();
    this.element.setAttribute("aria-busy", "true");
    this.status.textContent = "Drawing …";
    this.markHidden();
    try {
      const shown = await call("draw", this.view(), this.request.signal);
      this.show(shown);
      const took = Math.round(performance.now() - began);
      this.status.textContent = `Drawn in ${took.toLocaleString("en")} ms`;
      this.element.dataset.drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
      showError(null, this);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.status.textContent = "Not drawn: see the message above";
      showError(error, this);
    }
    this.element.setAttribute("aria-busy", "false");
    this.onchange();
  }

  show(shown) {
    this.title.textContent = shown.title;
    const link = shown.link ? el("a", { href: shown.link, rel: "noreferrer", target: "_blank" }, "Open the paper") : null;
    this.about.replaceChildren(el("p", {}, `${shown.about.join(". ")}. `, link ?? ""));
    const focused = document.activeElement?.dataset?.token;
    this.text.innerHTML = shown.text;
    const wereOpen = [...this.body.querySelectorAll("details")].map((details) => details.open);
    this.body.innerHTML = shown.body;
    const all = [...this.body.querySelectorAll("details")];
    if (all.length === wereOpen.length) all.forEach((details, k) => (details.open = wereOpen[k]));
    this.body.querySelectorAll(".pattern").forEach(limitHeight);
    this.statistics.replaceChildren();
    this.markHidden();
    this.stopAt(this.token(focused));
    if (focused !== undefined && !this.text.contains(document.activeElement)) this.token(focused)?.focus();
    const names = shown.controls.map((control) => control.name).join();
    if (names !== this.names) {
      this.names = names;
      this.controls.replaceChildren(...shown.controls.map((control) => this.control(control, shown.defaults[control.name])));
      if (!shown.controls.length) this.controls.append(el("p", { class: "soft" }, "This objective has no settings."));
    }
    const { shell, train, gin, python } = shown.commands;
    const commands = [["Show", shell], ["Train", train], ["Gin file", gin], ["Python", python]];
    if (!this.commands.children.length) this.commands.append(...commands.map(([title]) => copyable(title)));
    // The elements are kept, so that a focused button keeps the focus.
    this.commands.querySelectorAll("pre").forEach((pre, k) => (pre.textContent = commands[k][1]));
  }

  token(number) {
    return this.text.querySelector(`[data-token="${number}"]`);
  }

  choose(event) {
    const token = event.target.closest("[data-token]");
    if (!token) return;
    const chosen = new Set(numbersOf(this.state.hidden));
    const number = Number(token.dataset.token);
    chosen.has(number) ? chosen.delete(number) : chosen.add(number);
    this.hide(rangesOf([...chosen].sort((a, b) => a - b)));
  }

  // Marks the tokens that are chosen. If they cannot be hidden, the choice can still be undone.
  markHidden() {
    const chosen = numbersOf(this.state.hidden);
    for (const token of this.text.querySelectorAll("[data-token]")) {
      token.setAttribute("aria-pressed", chosen.includes(Number(token.dataset.token)));
    }
    this.random.hidden = !chosen.length;
  }

  hideRandom() {
    this.text.querySelector("[data-token]")?.focus(); // the button disappears
    this.hide("");
  }

  hide(hidden) {
    this.state.hidden = hidden;
    this.draw();
  }

  set(name, value, fallback) {
    if (value === fallback) delete this.own.values[name];
    else this.own.values[name] = value;
    this.later();
  }

  control(control, fallback) {
    const { name, kind, value, about } = control;
    const label = name.split(".").slice(-1)[0];
    const full = name.split(".").slice(-2).join(".");
    const change = (next) => this.set(name, next, fallback);
    const parts = [];
    if (kind === "switch") {
      const box = el("input", { type: "checkbox", checked: value, onchange: () => change(box.checked) });
      parts.push(box);
    } else if (kind === "choice") {
      const choices = control.choices.map((choice) => [choice, choice]);
      if (control.optional) choices.unshift(["", "none"]);
      parts.push(select(choices, value ?? "", (choice) => change(choice === "" ? null : choice)));
    } else if (kind === "literal") {
      const box = el("input", { type: "text", value, oninput: () => change(box.value) });
      parts.push(box);
    } else {
      parts.push(...slider(control, change));
    }
    const field = labeled(label, parts[0], about);
    field.title = full;
    if (parts[1]) {
      const line = el("div", { class: "line" });
      parts[0].replaceWith(line);
      line.append(...parts);
    }
    field.dataset.setting = name;
    return field;
  }

  async count(button) {
    button.disabled = true;
    this.statistics.replaceChildren(el("p", { class: "soft" }, "Counting …"));
    try {
      // The next drawing aborts the request, since the numbers would be of another view.
      this.statistics.innerHTML = (await call("statistics", this.view(), this.request.signal)).html;
    } catch (error) {
      this.statistics.replaceChildren();
      showError(error, this);
    }
    button.disabled = false;
  }
}

// Limits the height of a pattern: with many queries and few keys it would be taller than the screen.
function limitHeight(pattern) {
  const { width, height } = pattern.viewBox.baseVal;
  if (height <= width) return;
  pattern.setAttribute("preserveAspectRatio", "none");
  pattern.style.height = "12.5rem";
  pattern.style.width = `${Math.max(1, (12.5 * width) / height)}rem`;
}

// A slider and a number for the same value; an empty number is none, if the setting allows it.
function slider(control, change) {
  const { low, high, step, value, optional } = control;
  const range = el("input", { type: "range", min: low, max: high, step, value: value ?? low });
  const id = uniqueId("number");
  const number = el("input", { type: "number", step, id, "aria-label": `${control.name}, as a number`, value: value ?? "" });
  if (optional) number.placeholder = "none";
  range.addEventListener("input", () => {
    number.value = range.value;
    change(Number(range.value));
  });
  number.addEventListener("input", () => {
    if (number.validity.badInput || (number.value === "" && !optional)) return;
    if (number.value !== "") range.value = number.value;
    change(number.value === "" ? null : Number(number.value));
  });
  return [range, number];
}

export function numbersOf(hidden) {
  return (hidden ? hidden.split(",") : []).flatMap((part) => {
    const [first, last = first] = part.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, k) => first + k);
  });
}

export function rangesOf(numbers) {
  const ranges = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join();
}
