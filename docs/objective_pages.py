"""Writes a page with a picture for each objective, and the table of all objectives.

    python docs/objective_pages.py                         all pages, two minutes on one core
    python docs/objective_pages.py bert span_corruption    all pages, but only these pictures

A page combines objectives/catalog.py, the gin file of the objective, the table of
docs/small_runs.md, the FLOPs of relative_flops.py, and the laws of tests/objectives/registry.py.
The sections "Loss" and "When to use it" are written by hand in the page itself, and the program
keeps them. objective_figures.py draws its picture. The program writes docs/objectives/NAME.md and
NAME.svg, the table of docs/objectives.md, and docs/images/objectives.svg, which README.md shows.
"""

import ast
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(ROOT))

import jax
from objective_figures import command, overview, picture  # in the same folder
from relative_flops import REFERENCE, relative_flops  # in the same folder
from tables import cell, family_file, filled, table  # in the same folder

from benchmarks.objectives import BINDINGS
from pretrax import objectives
from pretrax.objectives.catalog import ARCHITECTURES, CATALOG, FAMILIES, run_of
from pretrax.training.devices.compilation_cache import enable_compilation_cache
from tests.objectives.registry import CASES, LAWS

PAGE, FOLDER = "objectives.md", "objectives"
PICTURE = "images/objectives.svg"  # shown in README.md
ABOUT = {  # what the objectives of a family share
    "language modeling": "A decoder predicts what comes next, alone or together with something "
    "further ahead.",
    "span corruption and mixtures": "Parts of a text are hidden, and a decoder writes the hidden "
    "parts.",
    "denoising of the whole text": "A decoder writes the whole text, given a noisy copy of it.",
    "infilling": "Parts of a text are moved to its end, so that a decoder writes them given the "
    "text on both sides.",
    "masked language modeling": "Hidden tokens are predicted at their own positions, given the "
    "text on both sides.",
    "diffusion and insertion": "A model learns to write a text in any order: by unmasking, "
    "replacing or inserting tokens.",
    "sentences and embeddings": "A text is judged or embedded as a whole, usually in addition to "
    "masked language modeling.",
}
LAW_GROUPS = {  # every law that the tests check, by its subject
    "Text": ("nothing is lost", "documents stay apart", "segments are of documents"),
    "Lengths": (
        "lengths are kept",
        "lengths are reached",
        "lengths are enough",
        "planned slots are used",
        "lengths never decrease",
        "more slots change nothing",
    ),
    "Features": (
        "facts are known",
        "features are as planned",
        "ids are in range",
        "padding does not count",
        "padding gives padding",
    ),
    "Loss": (
        "loss has terms",
        "loss is a sum over rows",
        "weights reach the loss",
        "every target counts",
    ),
    "Computation": ("noise is drawn", "batch = loop", "sharded = unsharded", "counts are sums"),
}
OUTLINE = """\
## Loss

```text
…
```

x is the text, x̃ the text with noise, y the targets of the decoder, and M the set of hidden
positions. Each mean is over the whole batch.

Targets per token: …. A target is a slot with a loss, which may be a sentinel or end-of-sequence. A
row has 512 tokens on average.

## When to use it

…

## At a glance
"""  # Replace each "…". The last paragraph may name other implementations, the authors' own first.


def main(names: Sequence[str]) -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    enable_compilation_cache()
    folder = DOCS / FOLDER
    folder.mkdir(exist_ok=True)
    for name in names or CATALOG:
        (folder / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        print(f"docs/{FOLDER}/{name}.svg")
    (DOCS / PICTURE).write_text(overview(), encoding="utf-8")
    for file, text in pages().items():  # a page names the command of its picture
        (DOCS / file).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Returns {file: text} of the pages of objectives and families, and of the page of all."""
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    files = {f"{FOLDER}/{name}.md": page(name) for name in CATALOG}
    families = {family_file(family): family_page(family) for family in FAMILIES}
    return files | families | {PAGE: filled(text, "objectives", index(), PAGE)}


def index() -> str:
    """Returns a heading and a table for each family of objectives."""
    parts = []
    for family in FAMILIES:
        parts.append(f"### [{family.capitalize()}]({family_file(family)})\n\n{ABOUT[family]}")
        parts.append(_list_of(family, FOLDER))
    return "\n\n".join(parts)


def family_page(family: str) -> str:
    """Returns the page of a family, in Markdown. A search finds its objectives instead."""
    hidden = "---\nsearch: {exclude: true}\n---\n"
    objectives = _list_of(family, f"../{FOLDER}")
    return f"{hidden}# {family.capitalize()}\n\n{ABOUT[family]}\n\n{objectives}\n"


def _list_of(family: str, folder: str) -> str:
    """Returns a table of the objectives of a family, with links to their pages in a folder."""
    header = ["objective", "name", "good for", "model", "attention", "paper"]
    rows = [
        [
            f"[{entry.title}]({folder}/{name}.md)",
            f"`{name}`",
            entry.good_for,
            ARCHITECTURES[entry.architecture].label,
            entry.attention,
            "[{}]({})".format(*entry.paper_link),
        ]
        for name, entry in FAMILIES[family].items()
    ]
    return table(header, rows)


def page(name: str) -> str:
    """Returns the page of an objective, in Markdown."""
    entry, builder = CATALOG[name], _builder(name)
    config = (ROOT / "gin_configs/objectives" / f"{name}.gin").read_text(encoding="utf-8")
    comment = re.match(r"(?:#.*\n)+", config)
    assert comment, f"{name}.gin must start with a comment"
    arguments = _arguments(builder)
    rows = [
        ["good for", entry.good_for],
        ["model", ARCHITECTURES[entry.architecture].label],
        ["attention", entry.attention],
        ["training FLOPs per token", _flops(name)],
        ["token ids", cell(arguments.get("ids", "no special tokens"))],
        ["short names", ", ".join(f"`{short}`" for short in entry.short_names) or "none"],
        ["paper", "[{}]({})".format(*entry.paper_link)],
        ["reference", f"[`objectives.{builder}`]({_reference(builder)})"],
    ]
    description = comment[0].replace("# ", "").replace("#", "").strip().replace("\n", " ")
    return f"""---
search: {{boost: {_boost(name)}}}
---
# {entry.title} (`{name}`)

{description}

![The model's inputs for an example text, its predictions, and its attention patterns]({name}.svg)

{_written_by_hand(name)}

## At a glance

{table(["", ""], rows)}

## Train it

```sh
{_train(name)}
```

In Python:

```python
{_train_in_python(name)}
```

## Settings

{_settings(name, builder, arguments)}

## Results here

{_learned(name)}

{_comparisons(name)}

## Details

{_folded("Draw the figure", _draw(name))}

{_folded(f"gin_configs/objectives/{name}.gin", _block("gin", config[comment.end() :].strip()))}

{_folded("Laws that the tests check", _laws(builder))}
"""


def _written_by_hand(name: str) -> str:
    """Returns the sections of a page that are written by hand, or their outline for a new page."""
    file = DOCS / FOLDER / f"{name}.md"
    text = file.read_text(encoding="utf-8") if file.exists() else OUTLINE
    found = re.search(r"^## Loss\n.*?(?=\n\n## At a glance$)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{file} must have the sections Loss, When to use it and At a glance, in order"
    return found[0]


def _flops(name: str) -> str:
    """Returns an objective's FLOPs per token of text, relative to causal language modeling."""
    how = f"[how we count](../{PAGE}#training-flops)"
    if name == REFERENCE:
        return f"1.00, the reference of other objectives ({how})"
    figure = f"{relative_flops(name):.2f}"
    return f"{figure} times those of [`{REFERENCE}`]({REFERENCE}.md) ({how})"


def _boost(name: str) -> int:
    """Returns the weight of a page in a search; other pages have 1.

    An objective whose title is a part of other titles counts more: "masked language modeling" finds
    its own page before "masked and permuted language modeling".
    """
    words, *others = (
        set(CATALOG[one].title.lower().split()) for one in (name, *(CATALOG.keys() - {name}))
    )
    return 3 if any(words < other for other in others) else 2


# --- sections of a page ---------------------------------------------------------------------------


def _train(name: str) -> str:
    """Returns the command of an objective's small run, after that of its initial run, if any."""
    first = [f"pretrax train {initial}"] if (initial := _initial_run(name)) else []
    more = [f"--gin.{line.replace(' ', '')}" for line in BINDINGS.get(name, [])]
    options = [f"--objective={name}", *more, f"--run_dir=runs/{name}"]
    return "\n".join([*first, shlex.join(["pretrax", "train", run_of(name), *options])])


def _initial_run(name: str) -> str | None:
    """Returns the run from whose parameters an objective's small run starts, if any."""
    text = (ROOT / f"gin_configs/runs/{run_of(name)}.gin").read_text(encoding="utf-8")
    match = re.search(r'^INITIAL_RUN = "runs/(\w+)"', text, re.MULTILINE)
    return match[1] if match else None


def _train_in_python(name: str) -> str:
    """Returns a program that trains an objective's small run, formatted as ruff formats it."""
    files = [f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"]
    settings = [f'RUN_DIR = "runs/{name}"', *BINDINGS.get(name, [])]
    lists = {"files": files, "settings": settings}
    lines = ["import pretrax", ""]
    for variable, values in lists.items():
        quoted = [repr(value) if '"' in value else f'"{value}"' for value in values]
        lines += [f"{variable} = [", *(f"    {value}," for value in quoted), "]"]
    return "\n".join([*lines, "result = pretrax.train(pretrax.read_run(files, settings))"])


def _arguments(builder: str) -> dict[str, str]:
    """Returns {argument: meaning} of a builder, from its docstring."""
    text = inspect.getdoc(getattr(objectives, builder)) or ""
    section = re.search(r"^Args:\n((?:  .*\n?|\n(?=  ))+)", text, re.MULTILINE)
    found = re.findall(
        r"^  ([*\w, ]+): (.*(?:\n {4}.*)*)", section[1] if section else "", re.MULTILINE
    )
    return {
        argument.lstrip("*"): " ".join(words.split())
        for several, words in found
        for argument in several.split(", ")
    }


def _settings(name: str, builder: str, about: Mapping[str, str]) -> str:
    """Returns a table of the arguments of a builder, with their values for an objective."""
    text = (ROOT / "gin_configs/objectives" / f"{name}.gin").read_text(encoding="utf-8")
    bound = dict(
        re.findall(rf"^objectives\.{builder}\.(\w+) = (.*?)(?:  #.*)?$", text, re.MULTILINE)
    )
    function = ast.parse(inspect.getsource(getattr(objectives, builder))).body[0]
    assert isinstance(function, ast.FunctionDef)
    rows = []
    for argument, kind, default in _parameters(function.args):
        here = bound.get(argument, "")
        here = "see Details" if here in ("(", "[", "{") else here and _code(here)
        meaning = cell(about.get(argument, ""))
        rows.append(
            [f"`{argument}`", kind and _code(kind), here, default and _code(default), meaning]
        )
    if not rows:
        return f"`objectives.{builder}` has no settings."
    return (
        f"Set them as `--gin.objectives.{builder}.NAME=VALUE`, or as arguments of "
        f"`objectives.{builder}` in Python.\n\n"
        + table(["setting", "type", f"value for `{name}`", "default", "meaning"], rows)
    )


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, str, str]]:
    """Yields the name, the type and the default of each argument after the token ids."""
    positional = arguments.args[1:]
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults):
        kind, value = (ast.unparse(x) if x else "" for x in (argument.annotation, default))
        yield argument.arg, kind, value


def _code(text: str) -> str:
    """Returns code for a cell of a table, in which a pipe in backticks would end the cell."""
    return f"<code>{cell(text)}</code>" if "|" in text else f"`{text}`"


def _comparisons(name: str) -> str:
    """Returns links to the reports of comparisons that train an objective."""
    kept = sorted((DOCS / "comparisons").glob("*/comparison.json"))
    lines = []
    for path in kept:
        setup = json.loads(path.read_text(encoding="utf-8"))
        comparison = path.parent.name
        gin = _gin_text(f"comparisons/{comparison}.gin")
        if re.search(rf"objectives[/.]{name}\b|--objective={name}\b", gin):
            lines.append(f"- [{setup['question']}](../comparisons/{comparison}.md)")
    if not lines:
        return "No comparison here has trained it yet. See [Comparing](../comparing.md)."
    return "\n".join(["Comparisons that train it:", "", *lines])


def _gin_text(name: str) -> str:
    """Returns the text of a comparison's gin file and of the comparisons that it includes."""
    text = (ROOT / "gin_configs" / name).read_text(encoding="utf-8")
    included = re.findall(r'^include "(comparisons/.*)"', text, re.MULTILINE)
    return "\n".join([text, *map(_gin_text, included)])


def _draw(name: str) -> str:
    return (
        "This command prints the figure in a terminal. With `--html=FILE` it also writes a web "
        "page with statistics of a thousand rows:\n\n" + _block("sh", command(name))
    )


def _folded(summary: str, text: str) -> str:
    """Returns text that is shown after a click on its summary, on GitHub and on the site."""
    head = f'<details markdown="1">\n<summary>{escape(summary)}</summary>'
    return f"{head}\n\n{text}\n\n</details>"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _learned(name: str) -> str:
    text = (DOCS / "small_runs.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \|(.+)\|$", text, re.MULTILINE)
    if not row:
        return "What the small run learns is [not measured](../small_runs.md) yet."
    run, steps, loss, baseline, decrease = (cell.strip() for cell in row[1].split("|"))
    value, _, term = loss.rstrip(")").partition(" (")
    subject = f"loss term `{term}` (the term that improved least)" if term else "loss"
    return (
        f"After {steps} steps of {run}, the {subject} was {value} nats per target on held-out "
        f"text. This is {decrease} less than the {baseline} nats of a model that ignores its input "
        "([how we measure](../small_runs.md))."
    )


def _laws(builder: str) -> str:
    """Returns the laws that tests check for a builder, and the reasons for exceptions."""
    cases = [case for case in CASES.values() if case.builder == builder]
    exemptions = [(law, reason) for case in cases for law, reason in case.exempt.items()]
    unchecked = {law for law in LAWS if all(law in case.exempt for case in cases)}
    assert sorted(LAWS) == sorted(law for group in LAW_GROUPS.values() for law in group)
    examples = f"{len(cases)} examples of its settings" if len(cases) > 1 else "one example"
    lines = [f"Tests check these laws for `{builder}`, with {examples}:", ""]
    for subject, group in LAW_GROUPS.items():
        kept = [law for law in group if law not in unchecked]
        if kept:
            lines.append(f"- {subject}: {'; '.join(kept)}")
    if exemptions:
        lines += ["", "Exceptions:", ""]
    for law, reason in dict.fromkeys(exemptions):
        count = exemptions.count((law, reason))
        which = "" if count == len(cases) else f" for {count} of the {len(cases)} examples"
        lines.append(f"- “{law}” is not checked{which}: {reason}.")
    return "\n".join(lines)


def _builder(name: str) -> str:
    """Returns the builder that an objective's gin file binds."""
    text = (ROOT / "gin_configs/objectives" / f"{name}.gin").read_text(encoding="utf-8")
    match = re.search(r"\.objective = @objectives\.(\w+)", text)
    assert match, name
    return match[1]


def _reference(builder: str) -> str:
    """Returns the address of a builder in the API reference."""
    return f"../api/objectives.md#{getattr(objectives, builder).__module__}.{builder}"


if __name__ == "__main__":
    main(sys.argv[1:])
