import { el, labeled, select, start } from "./common.js";

start((content, known) => {
  if (!known.comparisons.length) {
    content.append(el("p", {}, "No comparison has a report here: run `pretrax compare NAME`, or give --comparison=DIR."));
    return;
  }
  const frame = el("iframe", { class: "report", title: "Report of the comparison" });
  const show = (name) => (frame.src = `report?name=${encodeURIComponent(name)}`);
  content.append(labeled("Comparison", select(known.comparisons.map((name) => [name, name]), known.comparisons[0], show)), frame);
  show(known.comparisons[0]);
});
