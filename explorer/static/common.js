// What all pages share: calls of the server, elements, errors, and the state in the address.

export async function call(name, body = {}, signal = undefined) {
  let response;
  try {
    response = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Start `pretrax explore` again, and open its new address.");
  }
  const content = await response.json();
  if (!response.ok) {
    const error = new Error(content.error);
    error.place = content.place;
    throw error;
  }
  return content;
}

// Makes an element: el("button", { type: "button", onclick: f, "aria-label": "Copy" }, "Copy").
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const errors = new Map(); // what failed -> its error

// Shows an error of a source, such as a panel, until the source has none. Errors of other sources stay.
export function showError(error, source = "page") {
  if (error?.name === "AbortError") return;
  errors.delete(source);
  if (error) errors.set(source, error);
  const place = document.getElementById("error");
  place.hidden = !errors.size;
  place.replaceChildren(...[...errors.values()].map((error) =>
    el("span", {}, error.message, error.place ? el("code", {}, error.place) : null)));
}

// Returns a function that calls the server. It aborts the previous call, whose answer is stale.
export function latest(name) {
  let request;
  return (body) => {
    request?.abort();
    request = new AbortController();
    return call(name, body, request.signal);
  };
}

export function debounced(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

// The state of a page is kept in the fragment of its address, so that a reload or a link restores it.
export function readState(defaults) {
  try {
    return { ...defaults, ...JSON.parse(decodeURIComponent(location.hash.slice(1) || "{}")) };
  } catch {
    return { ...defaults };
  }
}

export function writeState(state) {
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
}

let count = 0;
export function uniqueId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

// A control with its label. `about` is read with the control by screen readers.
export function labeled(text, control, about = "") {
  const id = uniqueId("field");
  control.id = id;
  const parts = [el("label", { for: id }, text), control];
  if (about) {
    control.setAttribute("aria-describedby", `${id}-about`);
    parts.push(el("small", { id: `${id}-about` }, about));
  }
  return el("div", { class: "field" }, ...parts);
}

export function select(options, value, onchange) {
  const element = el("select", { onchange: () => onchange(element.value) });
  for (const [key, text] of options) element.append(el("option", { value: key }, text));
  element.value = value;
  return element;
}

// The options of a choice of vocabularies: those with a name, and those of the runs.
export function vocabularies(known) {
  return [...Object.entries(known.vocabularies), ...known.runs.map((run) => [run, run])];
}

// Returns a title with a button that copies the text of the element below it.
export function copyable(title) {
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.setAttribute("aria-label", `Copy: ${title}`);
  const pre = el("pre", { tabindex: "0" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the text to copy it";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return el("div", { class: "copyable" }, el("h3", {}, title, button), pre);
}

// Gives the buttons of a list a roving tabindex: Tab stops at one button, and the arrow keys, Home and
// End move within the list. Returns a function that sets this button, for when the buttons change.
export function arrowKeys(list, selector) {
  const buttons = () => [...list.querySelectorAll(selector)];
  const stopAt = (stop) => buttons().forEach((button) => (button.tabIndex = button === stop ? 0 : -1));
  list.addEventListener("focusin", (event) => event.target.matches(selector) && stopAt(event.target));
  list.addEventListener("keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
    if (at < 0 || !(event.key in next)) return;
    event.preventDefault();
    all[next[event.key]]?.focus();
  });
  return (stop) => stopAt(stop ?? buttons()[0]);
}

export function start(fill) {
  // The link would replace the state in the address.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  call("start")
    .then((known) => fill(document.getElementById("content"), known))
    .catch(showError);
}

export const FOX = "The quick brown fox jumps over the lazy dog.";
