import { FOX, arrowKeys, el, labeled, readState, start, uniqueId, writeState } from "./common.js";
import { ObjectivePanel, textForm } from "./panel.js";

start((content, known) => {
  const state = readState({
    text: FOX, vocabulary: "words", seed: 0, rows: 1, length: 512, hidden: "",
    own: { objective: known.objective, values: {} },
  });
  const panel = new ObjectivePanel(state, state.own, () => writeState(state));
  const list = el("div", { class: "objectives", role: "listbox", "aria-label": "Objectives" });
  const stopAt = arrowKeys(list, "button");
  const search = el("input", { type: "search", oninput: () => fill(search.value) });

  function choose(name) {
    state.hidden = "";
    panel.change(name);
    mark();
  }

  function mark() {
    const buttons = [...list.querySelectorAll("button")];
    for (const button of buttons) button.setAttribute("aria-selected", button.dataset.objective === state.own.objective);
    stopAt(buttons.find((button) => button.dataset.objective === state.own.objective));
  }

  function fill(wanted) {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const groups = [];
    const all = Object.entries(known.families);
    if (known.objective.includes(".")) {
      all.unshift(["your own", [{ name: known.objective, title: known.objective, aliases: [], good_for: "" }]]);
    }
    for (const [family, entries] of all) {
      const matches = entries.filter((entry) => {
        const text = `${entry.name} ${entry.title} ${entry.aliases.join(" ")} ${entry.good_for} ${family}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
      if (!matches.length) continue;
      const id = uniqueId("family");
      groups.push(el("div", { role: "group", "aria-labelledby": id },
        el("h3", { id, role: "presentation" }, family), ...matches.map((entry) => el("button", {
          type: "button", role: "option", title: entry.good_for, "data-objective": entry.name,
          onclick: () => choose(entry.name),
        }, entry.title))));
    }
    list.replaceChildren(...(groups.length ? groups : [el("p", { class: "soft" }, "No objective matches these words.")]));
    mark();
  }

  fill("");
  const wide = matchMedia("(min-width: 56rem)").matches;
  const sidebar = el("details", { class: "sidebar", open: wide }, el("summary", {}, "Objectives"),
    labeled("Search", search), list);
  content.append(el("div", { class: "columns" }, sidebar,
    el("div", {}, textForm(state, known, () => panel.draw()), panel.element)));
  panel.draw();
});
