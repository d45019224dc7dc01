// Sorts a table inside .sortable by the column whose heading is clicked or activated by a key.
for (const head of document.querySelectorAll(".sortable th")) {
  const sort = () => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    // Numbers have a typographic minus sign. Text that does not begin with a number is compared as text.
    const text = (row) => row.cells[head.cellIndex].textContent.trim();
    const key = (row) => text(row).replace("−", "-").replace(/^[<+]\s*/, "");
    const order = (a, b) => parseFloat(key(a)) - parseFloat(key(b)) || key(a).localeCompare(key(b));
    body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
}
