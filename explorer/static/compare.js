import { FOX, el, labeled, readState, select, start, writeState } from "./common.js";
import { ObjectivePanel, textForm } from "./panel.js";

start((content, known) => {
  const state = readState({
    text: FOX, vocabulary: "words", seed: 0, rows: 1, length: 512, hidden: "",
    both: [{ objective: "span_corruption", values: {} }, { objective: "prefix_lm", values: {} }],
  });
  const names = Object.entries(known.families).flatMap(([family, entries]) =>
    entries.map((entry) => [entry.name, `${entry.title} (${family})`]));
  if (known.objective.includes(".")) names.unshift([known.objective, known.objective]);
  const panels = state.both.map((own) => new ObjectivePanel(state, own, () => writeState(state)));
  const drawBoth = () => panels.forEach((panel) => panel.draw());
  panels.forEach((panel) => (panel.hide = (hidden) => {
    state.hidden = hidden;
    drawBoth();
  }));
  const columns = panels.map((panel, k) => el("div", {},
    labeled(k ? "Second objective" : "First objective", select(names, panel.own.objective,
      (name) => panel.change(name))), panel.element));
  content.append(textForm(state, known, drawBoth), el("div", { class: "two" }, ...columns));
  drawBoth();
});
