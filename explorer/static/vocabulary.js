import { FOX, debounced, el, labeled, latest, readState, select, showError, start, vocabularies, writeState } from "./common.js";

start((content, known) => {
  const state = readState({ text: FOX, vocabulary: "library" });
  const tokensOf = latest("tokens");
  const table = el("tbody");
  const pieces = el("div", { class: "flow pieces" });
  const caption = el("p", { class: "soft", role: "status" });

  async function show() {
    try {
      const found = await tokensOf(state);
      caption.textContent = `${found.tokens.length.toLocaleString("en")} tokens of a vocabulary of ${found.size.toLocaleString("en")}`;
      pieces.replaceChildren(...found.tokens.map((token, k) =>
        el("span", { class: `piece c${k % 4}`, title: `id ${token.id}` }, token.text || "‥")));
      table.replaceChildren(...found.tokens.slice(0, 500).map((token) => el("tr", {},
        el("td", { class: "left" }, el("code", {}, JSON.stringify(token.text))),
        el("td", {}, String(token.id)), el("td", { class: "left" }, el("code", {}, token.bytes)))));
      writeState(state);
      showError(null);
    } catch (error) {
      showError(error);
    }
  }

  const later = debounced(show, 300);
  const text = el("textarea", { rows: 4, spellcheck: "false", oninput: () => { state.text = text.value; later(); } });
  text.value = state.text;
  content.append(
    el("form", { class: "card", onsubmit: (event) => event.preventDefault() }, labeled("Text", text),
      labeled("Vocabulary", select(vocabularies(known), state.vocabulary, (name) => { state.vocabulary = name; show(); }))),
    caption, el("div", { class: "card" }, pieces),
    el("div", { class: "card scroll" }, el("table", {}, el("thead", {}, el("tr", {},
      el("th", { class: "left" }, "token"), el("th", {}, "id"), el("th", { class: "left" }, "bytes"))), table)));
  show();
});
