import { el, latest, readState, showError, start, writeState } from "./common.js";

const COLORS = 8;
const SVG = "http://www.w3.org/2000/svg";

start((content, known) => {
  if (!known.runs.length) {
    content.append(el("p", {}, "There is no run here. Start one with `pretrax train` in this folder."));
    return;
  }
  const state = readState({ runs: known.runs.slice(0, 1), all: false });
  const curvesOf = latest("curves");
  const charts = el("div", { class: "charts" });
  const status = el("p", { class: "soft", role: "status" });
  const boxes = known.runs.map((run) => {
    const box = el("input", { type: "checkbox", checked: state.runs.includes(run), onchange: () => {
      state.runs = known.runs.filter((_, k) => inputs[k].checked);
      show();
    } });
    return el("label", { class: "check" }, box, " ", run);
  });
  const inputs = boxes.map((label) => label.querySelector("input"));
  const all = el("input", { type: "checkbox", checked: state.all, onchange: () => { state.all = all.checked; show(); } });
  content.append(
    el("fieldset", { class: "card" }, el("legend", {}, "Runs"), ...boxes),
    el("label", { class: "check" }, all, " All metrics"), status, charts,
    el("p", { class: "soft" }, "For histograms, texts and many runs, use TensorBoard: ",
      el("code", {}, "tensorboard --logdir=runs")));

  const usual = (name) => name === "loss" || name.startsWith("loss/") || name.startsWith("heldout/") ||
    /learning_rate|per_second|tokens_s/.test(name);

  async function show() {
    writeState(state);
    try {
      const { curves } = await curvesOf({ runs: state.runs });
      const names = [...new Set(curves.map((curve) => curve.name))].filter((name) => state.all || usual(name));
      charts.replaceChildren(...names.map((name) => chart(name, curves.filter((curve) => curve.name === name))));
      const last = Math.max(0, ...curves.map((curve) => curve.steps.at(-1)));
      status.textContent = curves.length ? `Up to step ${last.toLocaleString("en")}` : "These runs have no metrics yet.";
      showError(null);
    } catch (error) {
      showError(error);
    }
  }

  function chart(name, curves) {
    const width = 460, height = 220, left = 64, bottom = 26, top = 8, right = 8;
    const steps = curves.flatMap((curve) => curve.steps);
    const values = curves.flatMap((curve) => curve.values).filter((value) => value !== null);
    const [x0, x1] = [Math.min(...steps), Math.max(...steps)];
    if (!values.length) values.push(0); // all values are infinite or not numbers
    const [y0, y1] = [Math.min(...values), Math.max(...values)];
    const x = (step) => left + ((step - x0) / (x1 - x0 || 1)) * (width - left - right);
    const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    const shape = (tag, attributes, text = "") => {
      const element = document.createElementNS(SVG, tag);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      element.textContent = text;
      return element;
    };
    const last = curves.map((curve) => `${curve.run}: ${format(curve.values.at(-1))}`).join("; ");
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name} by step. Last values: ${last}` });
    for (const value of y0 === y1 ? [y0] : [y0, (y0 + y1) / 2, y1]) {
      svg.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
        shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
    }
    for (const step of x0 === x1 ? [x0] : [x0, x1]) {
      svg.append(shape("text", { x: x(step), y: height - 8, "text-anchor": step === x1 ? "end" : "start" }, step.toLocaleString("en")));
    }
    curves.forEach((curve) => {
      const color = `var(--v${state.runs.indexOf(curve.run) % COLORS})`;
      const points = curve.steps.map((step, k) => [step, curve.values[k]]).filter(([, value]) => value !== null);
      svg.append(shape("polyline", { points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" "), style: `stroke:${color}` }));
      for (const [step, value] of points.length < 30 ? points : []) svg.append(shape("circle", { cx: x(step), cy: y(value), r: 2.5, style: `fill:${color}` }));
    });
    const legend = curves.map((curve) => el("span", { class: "key" },
      el("i", { style: `background:var(--v${state.runs.indexOf(curve.run) % COLORS})` }), `${curve.run} ${format(curve.values.at(-1))}`));
    return el("figure", { class: "card" }, el("h3", {}, name), svg, el("figcaption", {}, ...legend));
  }

  const format = (value) => (value === null ? "not a number" : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }));

  async function follow() {
    if (!document.hidden) await show();
    setTimeout(follow, 3000);
  }
  follow();
});
