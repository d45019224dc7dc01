"""Writes a page with a picture for each objective, and the table of all objectives.

    python docs/objective_pages.py                         all pages, two minutes on one core
    python docs/objective_pages.py bert span_corruption    only these pictures

A page combines objectives/catalog.py, the gin file of the objective, the table of
docs/performance.md, and the laws of tests/objectives/registry.py. Its picture is an example from
the page that `pretrax show --html` writes. The program writes docs/objectives/NAME.md and NAME.svg,
the table of docs/objectives.md, and docs/images/objectives.svg, which README.md shows.
"""

import ast
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(ROOT))

import jax
from rich.console import Console
from tables import filled, table  # in the same folder

from benchmarks.objectives import BINDINGS
from pretrax.cli import show
from pretrax.objectives.catalog import ARCHITECTURES, CATALOG, FAMILIES, Family, aliases_of, run_of
from pretrax.training.devices.compiled_programs import keep_compiled
from pretrax.visualization import html, picture_page
from pretrax.visualization.picture import KINDS, Picture, Slot, Token, compact
from tests.objectives.registry import CASES, LAWS

PAGE, FOLDER = "objectives.md", "objectives"
PICTURE, OVERVIEW = "images/objectives.svg", ("span_corruption", "masked_lm")  # shown in README.md
TEXT = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps for an hour and dreams of a fox. "
    "It rains, so the fox walks home, and the dog is still asleep at night."
)
TEXTS = {"number_token_loss": "Of 9 8 7 6 dogs 5 4 3 sleep, and 2 or 1 or 0 dream of a fox."}
SEED = 2  # seed of the noise of a picture
WIDTH = 760  # width of a picture in pixels
LETTER = 7.83  # width in pixels of a letter in the widest common font
STANDS_OUT = set(KINDS) - set(picture_page.BARE)  # kinds of tokens with space around their text
# Browsers draw HTML within an SVG even if the SVG is an image, as on GitHub.
FILE = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>{style}
body {{ background:var(--card); border-radius:10px; padding:1.1rem 1.2rem; height:{height}px }}
h2 {{ margin:1.6rem 0 0; padding-top:.8rem; border-top:1px solid var(--line) }}
</style>
<foreignObject width="{width}" height="{height}"><body xmlns="http://www.w3.org/1999/xhtml">
{content}</body></foreignObject>
</svg>
"""

_GITHUB = "https://github.com/"
_T5 = ("T5", "google-research/text-to-text-transfer-transformer/blob/main/t5/data/preprocessors.py")
_TRANSFORMERS = (
    "transformers' collators",
    "huggingface/transformers/blob/main/src/transformers/data/data_collator.py",
)
_BART = ("fairseq", "facebookresearch/fairseq/blob/main/fairseq/data/denoising_dataset.py")
_BERT = ("BERT", "google-research/bert/blob/master/create_pretraining_data.py")
_ALBERT = ("ALBERT", "google-research/albert/blob/master/create_pretraining_data.py")
_MEGATRON = "NVIDIA/Megatron-LM/blob/main/megatron"
ELSEWHERE = {  # other code that we have read, beginning with the authors' own
    "causal_lm": [_TRANSFORMERS],
    "prefix_lm": [_T5],
    "multi_token_prediction": [
        ("Megatron-LM", f"{_MEGATRON}/core/transformer/multi_token_prediction.py")
    ],
    "token_order_prediction": [("its authors", "zaydzuhri/token-order-prediction")],
    "number_token_loss": [("its authors", "tum-ai/number-token-loss")],
    "llm_jepa": [("its authors", "galilai-group/llm-jepa")],
    "span_corruption": [_T5],
    "iid_denoising": [_T5],
    "blank_infilling": [("GLM", "THUDM/GLM")],
    "mass": [("its authors", "microsoft/MASS")],
    "gap_sentences": [("PEGASUS", "google-research/pegasus")],
    **dict.fromkeys(
        ("bart", "text_infilling", "sentence_permutation", "document_rotation"), [_BART]
    ),
    "fill_in_the_middle": [("Megatron-LM", f"{_MEGATRON}/training/datasets/fim_dataset.py")],
    "causal_masking": [
        ("metaseq", "facebookresearch/metaseq/blob/main/metaseq/data/cm3_dataset.py")
    ],
    "masked_lm": [_BERT, _TRANSFORMERS],
    "whole_word_masking": [_BERT, _TRANSFORMERS],
    "spanbert": [("its authors", "facebookresearch/SpanBERT")],
    "albert_ngrams": [_ALBERT],
    "masked_permuted_lm": [("MPNet", "microsoft/MPNet")],
    "permutation_lm": [
        ("XLNet", "zihangdai/xlnet/blob/master/data_utils.py"),
        _TRANSFORMERS,
    ],
    "replaced_token_detection": [
        ("ELECTRA", "google-research/electra/blob/master/run_pretraining.py")
    ],
    "masked_diffusion": [("MDLM", "kuleshov-group/mdlm")],
    "uniform_diffusion": [("Duo", "s-sahoo/duo")],
    "shifted_diffusion": [("DiffuLLaMA", "HKUNLP/DiffuLLaMA")],
    "insertion_lm": [("its authors", "dhruvdcoder/ILM")],
    "bert": [_BERT],
    "next_sentence_prediction": [_BERT],
    "sentence_order_prediction": [_ALBERT],
    "contrastive": [("SimCSE", "princeton-nlp/SimCSE")],
    "retromae": [("its authors", "staoxiao/RetroMAE")],
    "contrastive_pairs": [
        ("open_clip", "mlfoundations/open_clip/blob/main/src/open_clip/loss.py"),
        (
            "sentence-transformers",
            "huggingface/sentence-transformers/blob/main/sentence_transformers/losses/"
            "MultipleNegativesRankingLoss.py",
        ),
    ],
}


def main(names: Sequence[str]) -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    keep_compiled()
    folder = DOCS / FOLDER
    folder.mkdir(exist_ok=True)
    for file, text in pages().items():
        (DOCS / file).write_text(text, encoding="utf-8")
    for name in names or CATALOG:
        (folder / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        print(f"docs/{FOLDER}/{name}.svg")
    (DOCS / PICTURE).write_text(overview(), encoding="utf-8")


def pages() -> dict[str, str]:
    """Returns {file: text} of the pages of objectives and families, and of the page of all."""
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    files = {f"{FOLDER}/{name}.md": page(name) for name in CATALOG}
    families = {f"families/{name}.md": family_page(family) for name, family in FAMILIES.items()}
    return files | families | {PAGE: filled(text, "objectives", index(), PAGE)}


def index() -> str:
    """Returns a heading and a table for each family of objectives."""
    parts = []
    for name, family in FAMILIES.items():
        parts.append(f"### [{family.title}](families/{name}.md)\n\n{family.about}")
        parts.append(_list_of(family, FOLDER))
    return "\n\n".join(parts)


def family_page(family: Family) -> str:
    """Returns the page of a family, in Markdown."""
    return f"# {family.title}\n\n{family.about}\n\n{_list_of(family, f'../{FOLDER}')}\n"


def _list_of(family: Family, folder: str) -> str:
    """Returns a table of the objectives of a family, with links to their pages in a folder."""
    heads = ["objective", "name", "good for", "model", "attention", "paper"]
    rows = [
        [
            f"[{entry.title}]({folder}/{name}.md)",
            f"`{name}`",
            entry.good_for,
            ARCHITECTURES[entry.architecture],
            entry.attention,
            _paper(entry.paper),
        ]
        for name, entry in family.entries.items()
    ]
    return table(heads, rows)


def page(name: str) -> str:
    """Returns the page of an objective, in Markdown."""
    entry, builder = CATALOG[name], _builder(name)
    config = (ROOT / "gin_configs/objectives" / f"{name}.gin").read_text(encoding="utf-8")
    about = re.match(r"(?:#.*\n)+", config)
    assert about, f"{name}.gin has a comment at its head"
    elsewhere = ", ".join(f"[{word}]({_GITHUB}{path})" for word, path in ELSEWHERE.get(name, []))
    rows = [
        ["good for", entry.good_for],
        ["model", ARCHITECTURES[entry.architecture]],
        ["attention", entry.attention],
        ["loss", f"in {entry.loss_slots} slots of a row of 512 tokens of text, on average"],
        ["paper", _paper(entry.paper)],
        ["short names", ", ".join(f"`{short}`" for short in aliases_of(name)) or "none"],
        [
            "builder",
            f"[`objectives.{builder}`](../api/objectives.md#pretrax.objectives.{_module(builder)}.{builder})",
        ],
        ["code elsewhere", elsewhere or "we know of none to point to"],
    ]
    words = about[0].replace("# ", "").replace("#", "").strip().replace("\n", " ")
    return f"""# {entry.title} (`{name}`)

{words}

![What a model is given of a text, what it predicts, and which slots attend to which]({name}.svg)

This command prints the same in the terminal; with `--html=FILE` it writes a page that adds
statistics of a thousand rows:

```sh
pretrax show {shlex.join(options(name))}
```

{table(["", ""], rows)}

## Train it

```sh
{_train(name)}
```

{_learned(name)}

`gin_configs/objectives/{name}.gin`:

```gin
{config[about.end() :].strip()}
```

## Laws

{_laws(builder)}
"""


def options(name: str) -> list[str]:
    """Returns the options of `pretrax show` that draw an objective's picture."""
    text = TEXTS.get(name, TEXT)
    return [f"--objective={name}", "--vocabulary=words", f"--seed={SEED}", f"--text={text}"]


def picture(name: str) -> str:
    """Returns the picture of an objective as an SVG.

    For a mixture, only the first member has its attention patterns.
    """
    drawn = _drawn(name)
    first, *others = drawn.examples
    return svg(replace(drawn, examples=[first, *(replace(x, attentions=[]) for x in others)]))


def overview() -> str:
    """Returns an SVG of what a model is given of a text and predicts, for a few objectives."""
    examples = [
        replace(one, title=name, attentions=[], stacks=[replace(s, tracks={}) for s in one.stacks])
        for name in OVERVIEW
        for one in _drawn(name).examples
    ]
    return svg(Picture("", "", [], examples))


def _drawn(name: str) -> Picture:
    read, given = show.read_command_line(options(name))
    choice = show.choose(read, given)
    text = show.open_text(Console(), read, given, choice)
    return show.draw(read, choice, text).picture


# --- pictures as files ----------------------------------------------------------------------------


def svg(drawing: Picture) -> str:
    """Returns the HTML of a picture as an SVG file, which Markdown can show on any site."""
    parts = []
    for one in drawing.examples:
        title = f"<h2>{escape(one.title)}</h2>\n" if one.title else ""
        parts.append(title + picture_page.example(one))
    return FILE.format(
        width=WIDTH,
        height=_height(drawing),
        style=html.STYLE + picture_page.STYLE,
        content=picture_page.legend(drawing) + "".join(parts),
    )


def _height(drawing: Picture) -> int:
    """Returns the height in pixels that a browser with wide letters needs."""
    height = 40.0 + 22 * _lines([8 * len(about) + 30 for _, about in drawing.legend])
    for one in drawing.examples:
        height += 52 + 60 * bool(one.title) + 76 * bool(one.pools)
        height += sum(8 + _flow_height(document) for document in one.text)
        for stack in one.stacks:
            heading = [LETTER * len(word) for word in (stack.name, *stack.caption.split())]
            height += 44 + 18 * _lines(heading, gap=LETTER)
            if any(slot.predicted for slot in stack.slots):
                lines = _lines(map(_cell_width, stack.slots), gap=3)
                height += lines * (41 + 18 * len(stack.further))
            else:
                height += _flow_height([slot.given for slot in stack.slots])
            room = WIDTH - 70 - LETTER * max(map(len, stack.tracks), default=0)
            tracks = [compact(values, picture_page.RUNS) for values in stack.tracks.values()]
            height += sum(18 * math.ceil(LETTER * len(track) / room) for track in tracks)
        for first in range(0, len(one.attentions), 3):
            shapes = [a.queries / a.keys for a in one.attentions[first : first + 3]]
            height += 64 + 200 * max(shapes)
    return math.ceil(height)


def _flow_height(tokens: Sequence[Token]) -> int:
    text = "".join(token.before + token.text for token in tokens)
    words = [[LETTER * len(word) for word in line.split()] for line in text.split("\n")]
    return sum(23 * _lines(line, gap=LETTER + 1) for line in words)


def _cell_width(slot: Slot) -> float:
    tokens = [x for x in (slot.given, slot.predicted, *slot.further) if x]
    return 8 + max(LETTER * len(x.one_line) + 6 * (x.kind in STANDS_OUT) for x in tokens)


def _lines(widths: Iterable[float], gap: float = 18) -> int:
    """Returns the number of lines that boxes of these widths fill, with a gap between boxes."""
    lines = 1
    used = 0.0
    for width in widths:
        if used + width > WIDTH - 40:
            lines += 1
            used = 0.0
        used += width + gap
    return lines


# --- what a page says -----------------------------------------------------------------------------


def _train(name: str) -> str:
    """Returns the commands of an objective's small run, and of the run it starts from, if any."""
    small = run_of(name)
    begins = re.search(
        r'^INITIAL_RUN = "runs/(\w+)"',
        (ROOT / f"gin_configs/runs/{small}.gin").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    first = [f"pretrax train --gin_file=runs/{begins[1]}.gin"] if begins else []
    more = [f"--gin.{line.replace(' ', '')}" for line in BINDINGS.get(name, [])]
    files = [f"--gin_file=runs/{small}.gin", f"--gin_file=objectives/{name}.gin"]
    command = shlex.join(["pretrax", "train", *files, *more, f"--run_dir=runs/{name}"])
    return "\n".join([*first, command])


def _learned(name: str) -> str:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \|(.+)\|$", text, re.MULTILINE)
    if not row:
        return "What it learns of the small run's text is [not measured](../performance.md) yet."
    run, steps, loss, baseline, better = (cell.strip() for cell in row[1].split("|"))
    figure, _, least = loss.rstrip(")").partition(" (")
    of = f"the loss of `{least}`, which gained least of what it trains," if least else "its loss"
    return (
        f"After {steps} steps of {run} {of} was {figure} nats per target on held-out text, where a "
        f"model that ignores its input has {baseline}: {better} less "
        "([how](../performance.md#what-each-objective-learns))."
    )


def _laws(builder: str) -> str:
    """Returns the laws that tests check for a builder, and the reasons for exceptions."""
    cases = [case for case in CASES.values() if case.builder == builder]
    whys = [(law, why) for case in cases for law, why in case.exempt.items()]
    kept = ", ".join(law for law in LAWS if law not in dict(whys))
    settings = f"{len(cases)} settings of it" if len(cases) > 1 else "one setting of it"
    lines = [f"Tests of `{builder}`, with {settings}, hold it to: {kept}."]
    for law, why in dict.fromkeys(whys):
        which = f" of {whys.count((law, why))} of the {len(cases)}" * (len(cases) > 1)
        lines.append(f"- Not{which}: {law}, since: {why}.")
    return "\n".join(lines).replace("\n-", "\n\n-", 1)


def _builder(name: str) -> str:
    """Returns the builder that an objective's gin file binds."""
    text = (ROOT / "gin_configs/objectives" / f"{name}.gin").read_text(encoding="utf-8")
    found = re.search(r"\.objective = @objectives\.(\w+)", text)
    assert found, name
    return found[1]


def _module(builder: str) -> str:
    """Returns the name of a builder's module in the package `objectives`."""
    exports = ast.parse((ROOT / "objectives/__init__.py").read_text(encoding="utf-8"))
    return next(
        node.module
        for node in exports.body
        if isinstance(node, ast.ImportFrom)
        and node.module
        and builder in [a.name for a in node.names]
    )


def _paper(text: str) -> str:
    """Returns `T5, arXiv:1910.10683` as a link to the paper."""
    name, number = text.split(", arXiv:")
    return f"[{name}](https://arxiv.org/abs/{number})"


if __name__ == "__main__":
    main(sys.argv[1:])
