"""Lets a trained model do what it was trained for: go on, fill in, restore, embed or score text.

    pretrax predict --run=runs/quickstart "def open(<extra_id_0>):"
    pretrax predict --run=runs/decoder "import os" --temperature=0.8 --top_p=0.95 --samples=3
    pretrax predict --run=runs/fim --prefix="def f(x):" --suffix="    return y"
    pretrax predict --run=runs/bert "The [MASK] is open." --top=10
    pretrax predict --run=runs/NAME --file=in.jsonl --out=out.jsonl       restartable
    pretrax predict --run=runs/NAME --score "How likely is this?"

RUN is the directory of a run, or what convert.py made of a model from elsewhere. Without --mode it
does what the run's objective trained it for, and says what that is.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pretrax import verbs
from pretrax.inference import (
    MODES,
    Decoding,
    Draft,
    Options,
    Trained,
    answer,
    few_shot_prompt,
    mode_of,
)
from pretrax.inference.answer_files import AnswerFile, read_items
from pretrax.inference.decoding import decoding_form
from pretrax.inference.speculation import DraftCounts, model_drafter
from pretrax.tasks.trained_models import open_trained
from pretrax.training.command_line import mistakes_in_words
from pretrax.training.mesh import make_mesh, placed_on
from pretrax.verbs import as_typed

WRITING = ("continue", "complete", "respond", "restore")  # modes whose answer is a text of its own
MOST_SIMILAR = 12  # texts whose similarities are shown as a table


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = Console(highlight=False)
    stopped = "\nInterrupted; the same command goes on with the first line that is not answered."
    with mistakes_in_words(options.traceback, stopped):
        mesh = make_mesh(fsdp=options.fsdp, tensor=options.tensor)
        with placed_on(mesh):
            predict(console, options, mesh)


def predict(console: Console, options, mesh: Mesh) -> None:
    trained = open_trained(options.run, mesh=mesh)
    mode = "score" if options.score else options.mode or mode_of(trained)
    items = asked(options, mode)
    how = how_to_answer(options, trained, mesh)
    announce(console, options, trained, mode)
    draft_counts: list[DraftCounts] = []
    how = dataclasses.replace(how, on_drafts=draft_counts.append)
    if options.file:
        answer_file(console, options, trained, mode, items, how)
    else:
        answer_here(console, options, trained, mode, items, how)
    if draft_counts:
        show_draft_counts(console, options, draft_counts)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=as_typed("pretrax predict"),
        description=as_typed(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--run", required=True, metavar="RUN")
    what = parser.add_argument_group("what to do")
    modes = "; ".join(f"{name}: {about}" for name, (about, _) in MODES.items())
    what.add_argument("--mode", help=f"one of: {modes}. Default: what it was trained for")
    what.add_argument("--score", action="store_true", help="tell how likely the texts are")
    what.add_argument("--target", help="with --score: the answer to TEXT that is scored")
    what.add_argument("--prefix", help="what stands before the middle")
    what.add_argument("--suffix", help="what stands after it")
    what.add_argument(
        "--cursor", metavar="FILE:LINE:COLUMN", help="fill in at this place of a file, from 1"
    )
    what.add_argument("--denoiser", metavar="R|S|X", help="the mode token before the text (UL2)")
    what.add_argument("--top", type=int, default=5, help="guesses for each mask")
    what.add_argument("--masks", type=int, default=0, help="so many [MASK] after each text")
    what.add_argument("--steps", type=int, help="of unmasking; default: one for each mask")
    what.add_argument("--order", default="confidence", help="of unmasking: confidence or random")
    what.add_argument("--pooling", help="of embeddings: first or mean")
    what.add_argument("--against", nargs="+", metavar="TEXT", help="texts to compare with")
    many = parser.add_argument_group("many at once")
    many.add_argument("--file", metavar="IN.jsonl", help='a line each: {"text": "…"}')
    many.add_argument("--out", metavar="OUT.jsonl", help="where their answers go, line by line")
    many.add_argument("--batch_size", type=int, default=32)
    shots = parser.add_argument_group("few-shot prompts")
    shots.add_argument(
        "--examples", metavar="EX.jsonl", help="solved examples, a JSON object a line"
    )
    shots.add_argument("--template", help='such as "Q: {question}\\nA: {answer}"')
    shots.add_argument("--answer", default="answer", help="the template's field to be answered")
    how = parser.add_argument_group("decoding")
    how.add_argument("--max_new", type=int, default=64, help="tokens of an answer, at most")
    how.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    how.add_argument("--top_k", type=int)
    how.add_argument("--top_p", type=float)
    how.add_argument("--min_p", type=float)
    how.add_argument("--repetition_penalty", type=float, default=1.0)
    how.add_argument("--beams", type=int, default=1)
    how.add_argument("--length_penalty", type=float, default=1.0)
    how.add_argument("--samples", type=int, default=1, help="answers to each text")
    how.add_argument("--stop", action="append", default=[], help="end before this text; repeatable")
    how.add_argument("--seed", type=int, default=0)
    how.add_argument(
        "--own_drafts",
        action="store_true",
        help="speculative decoding with the heads that multi_token_prediction trained",
    )
    how.add_argument("--draft", metavar="RUN", help="speculative decoding with a smaller model")
    how.add_argument("--draft_tokens", type=int, default=4, help="drafts a step of that model")
    where = parser.add_argument_group(
        "devices", "rows go to all of this machine; for a model too large for one of them:"
    )
    where.add_argument("--fsdp", type=int, default=1, help="spread the parameters over so many")
    where.add_argument("--tensor", type=int, default=1, help="and matrix products over so many")
    parser.add_argument("--traceback", action="store_true", help="show where an error came up")
    options = parser.parse_args(argv)
    if bool(options.file) != bool(options.out):
        parser.error("--file and --out go together: one is read, the other written")
    if bool(options.examples) != bool(options.template):
        parser.error("--examples and --template go together")
    for name, least in (("top", 1), ("masks", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name}={getattr(options, name)}: expected {least} or more")
    if "" in options.stop:
        parser.error('--stop="" is in every text: give some words')
    if options.target is not None and not options.score:
        parser.error("--target is scored: give --score as well")
    if options.target is not None and options.file:
        parser.error(
            '--target is of a TEXT; a line of --file has its own: {"text": …, "target": …}'
        )
    if options.against and options.file:
        parser.error(
            "--against compares texts of the command line; embeddings of --file are in --out"
        )
    if options.out and Path(options.out).resolve() == Path(options.file or "").resolve():
        parser.error("--out is --file: answers need a file of their own")
    if options.own_drafts and options.draft:
        parser.error("--own_drafts and --draft are two ways to the same: give one")
    return options


def asked(options, mode: str) -> list[dict]:
    """The items of the command line, or of its file.

    Raises ValueError where there are none, or more than one way says what they are.
    """
    pair = {key: getattr(options, key) for key in ("prefix", "suffix")}
    pair = {key: value for key, value in pair.items() if value is not None}
    if options.cursor:
        pair = around_cursor(options.cursor)
    given = [bool(options.texts), bool(options.file), bool(pair)]
    if sum(given) != 1:
        raise ValueError(
            "Expected one of: texts, --file, or --prefix and --suffix (or --cursor); got "
            f"{'none' if not any(given) else 'several'} of them."
        )
    if pair and mode != "middle":
        raise ValueError(
            f"Got --prefix, --suffix or --cursor, which mode 'middle' takes, and not {mode!r}: "
            "give the text itself, or --mode=middle to a model that fill_in_the_middle trained."
        )
    if mode == "middle" and options.texts:
        raise ValueError(
            "Got a text, expected --prefix and --suffix (or --cursor): what this model was trained "
            "for is to write what stands between. For the text to be gone on from, --mode=continue."
        )
    items = read_items(options.file) if options.file else [pair] if pair else texts_of(options)
    if options.examples:
        items = with_examples(options, items)
    if options.masks:
        items = [with_masks(item, options.masks) for item in items]
    return items


def with_masks(item: dict, count: int) -> dict:
    text = item.get("text", "")
    return {**item, "text": text + "[MASK]" * count} if isinstance(text, str) else item


def texts_of(options) -> list[dict]:
    target = {} if options.target is None else {"target": options.target}
    return [{"text": text, **target} for text in options.texts]


def around_cursor(place: str) -> dict:
    """A file's text before and after a place, FILE:LINE:COLUMN from 1."""
    name, *numbers = place.rsplit(":", 2)
    if len(numbers) != 2 or not all(x.isdigit() and int(x) > 0 for x in numbers):
        raise ValueError(f"Got --cursor={place!r}, expected FILE:LINE:COLUMN, both from 1.")
    if not Path(name).is_file():
        raise ValueError(f"Got --cursor={place!r}, expected a file: there is no {name}.")
    text = Path(name).read_text("utf-8")
    lines = text.split("\n")  # as editors count: a form feed ends no line
    line, column = (int(x) for x in numbers)
    if line > len(lines) or column > len(lines[line - 1]) + 1:
        raise ValueError(f"{name} has no line {line} with a column {column}.")
    at = sum(len(x) + 1 for x in lines[: line - 1]) + column - 1
    return {"prefix": text[:at], "suffix": text[at:]}


def with_examples(options, items: list[dict]) -> list[dict]:
    """Items with the few-shot prompt as their text; a text of the command line fills {text}."""
    examples = read_items(options.examples)
    template = options.template.replace("\\n", "\n")
    return [
        {**item, "text": few_shot_prompt(template, examples, item, options.answer)}
        for item in items
    ]


def how_to_answer(options, trained: Trained, mesh: Mesh) -> Options:
    stop_strings = tuple(x.replace("\\n", "\n") for x in options.stop)
    decoding = Decoding(
        max_new=options.max_new,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        beams=options.beams,
        length_penalty=options.length_penalty,
        samples=options.samples,
        stop_strings=stop_strings,
        seed=options.seed,
        batch_size=options.batch_size,
        own_drafts=options.own_drafts,
    )
    return Options(
        decoding=decoding,
        draft=draft_model(options, trained, mesh) if options.draft else None,
        denoiser=options.denoiser,
        top=options.top,
        steps=options.steps,
        order=options.order,
        pooling=options.pooling,
    )


def draft_model(options, trained: Trained, mesh: Mesh) -> Draft:
    small = open_trained(options.draft, mesh=mesh)
    if small.ids != trained.ids:
        raise ValueError(
            f"{options.draft} has another vocabulary than {options.run}: a draft model must have "
            "the same one."
        )
    if small.model.layout != trained.model.layout:
        raise ValueError(
            f"{options.draft} is of layout {small.model.layout!r}, {options.run} of "
            f"{trained.model.layout!r}: a draft model must have the same one."
        )
    model, params = decoding_form(small.model, small.params)
    return Draft(model_drafter(model, options.draft_tokens), params)


def announce(console: Console, options, trained: Trained, mode: str) -> None:
    if mode == "score":
        about = "tells how likely a text is"
    elif options.mode is None:
        about = f"{MODES[mode].about}, since it is of layout {trained.model.layout}"
        if trained.prompt_forms:
            about = f"{MODES[mode].about}, prompted as in training"
    else:
        about = MODES[mode].about if mode in MODES else ""
    console.print(f"{options.run}: {mode} — {about}.", markup=False, soft_wrap=True, style="dim")


# --- here, or in files --------------------------------------------------------------------------


def answer_here(console: Console, options, trained: Trained, mode: str, items, how: Options):
    streams = len(items) == 1 and mode in WRITING
    if streams and options.beams == options.samples == 1 and console.is_terminal:
        stream(console, trained, mode, items, how)
        return
    records = answer(trained, mode, items, how)
    if mode == "embed":
        show_similarities(console, options, trained, records, how)
        return
    for item, record in zip(items, records):
        show(console, mode, item, record)


def stream(console: Console, trained: Trained, mode: str, items, how: Options) -> None:
    """Prints an answer as it comes."""
    shown = []

    def more(text: str) -> None:
        before = "".join(shown)
        if text.startswith(before):  # a character may still lack some of its bytes
            new = text[len(before) :].rstrip("\N{REPLACEMENT CHARACTER}")
            shown.append(new)
            console.file.write(new)
            console.file.flush()

    if mode == "continue":
        console.print(Text(items[0]["text"], style="dim"), end="")
    answer(trained, mode, items, dataclasses.replace(how, on_text=more))
    console.print()


def show(console: Console, mode: str, item: dict, record: dict) -> None:
    """One item and what was made of it, for people."""
    if mode == "mask":
        show_masks(console, item["text"], record["masks"])
    elif mode == "score":
        console.print(
            f"{record['log_prob']:.3f} nats over {record['tokens']} tokens, "
            f"{record['bits_per_byte']:.3f} bits a byte: {item.get('target', item['text'])!r}",
            markup=False,
            soft_wrap=True,
        )
    elif mode == "tag":
        console.print(Text(" ".join(f"{word}/{name}" for word, name in record["words"])))
    elif mode == "classify":
        told = record.get("classes", [])
        shares = ", ".join(f"{one['class']} {one['probability']:.3f}" for one in told)
        console.print(Text(f"{shares or record['answer']}: {item['text'][:60]!r}"), soft_wrap=True)
    elif mode in ("infill", "middle"):
        console.print(Text(record["filled"]), soft_wrap=True)
        for other in record.get("others", []):
            console.print("─" * 20, style="dim")
            console.print(Text(other if isinstance(other, str) else other["answer"]))
    else:
        before = Text(item["text"], style="dim") if mode == "continue" else Text()
        answers = [record["answer"], *(other["answer"] for other in record.get("others", []))]
        for i, text in enumerate(answers):
            if i:
                console.print("─" * 20, style="dim")
            console.print(before + Text(text), soft_wrap=True)


def show_masks(console: Console, text: str, masks: list) -> None:
    console.print(Text(text), soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for k in range(len(masks)):
        table.add_column(f"mask {k + 1}")
        table.add_column("p", justify="right")
    for rank in range(len(masks[0])):
        cells = []
        for guesses in masks:
            guess = guesses[rank]
            cells += [Text(repr(guess["token"])), f"{guess['probability']:.3f}"]
        table.add_row(*cells)
    console.print(table)


def show_similarities(console: Console, options, trained: Trained, records, how: Options) -> None:
    """Cosines of texts with each other, or with those given as --against."""
    left = np.array([record["embedding"] for record in records])
    right, texts = left, options.texts
    if options.against:
        texts = options.against
        # Where a contrastive objective trained two towers, the second one reads what is compared with.
        second = dataclasses.replace(how, second=bool(trained.prompt_forms))
        others = answer(trained, "embed", [{"text": text} for text in texts], second)
        right = np.array([record["embedding"] for record in others])
    console.print(f"{len(left)} embeddings of {left.shape[1]} numbers; --file and --out keep them.")
    if len(right) == 1 and not options.against:
        return
    table = Table(title="Cosines", title_justify="left", box=None, header_style="bold")
    table.add_column("")
    for text in texts[:MOST_SIMILAR]:
        table.add_column(Text(text[:16]), justify="right")
    for text, row in zip(options.texts, (left @ right.T)[:, :MOST_SIMILAR]):
        table.add_row(Text(text[:40]), *(f"{x:.3f}" for x in row))
    console.print(table)


def show_draft_counts(console: Console, options, counts: Sequence[DraftCounts]) -> None:
    steps, drafted, accepted = (int(sum(np.sum(x) for x in part)) for part in zip(*counts))
    console.print(
        f"Drafts: {accepted} of {drafted} accepted ({accepted / max(drafted, 1):.0%}), "
        f"{1 + accepted / max(steps, 1):.2f} tokens for each call of the model.",
        style="dim",
    )
    if options.own_drafts:
        measure = f"python benchmarks/decode.py --run={options.run}"
        console.print(f"How much faster that is: {measure}", style="dim", soft_wrap=True)


def answer_file(console: Console, options, trained: Trained, mode: str, items, how: Options):
    """Answers line by line, in order, going on after the last whole line that is there."""
    out = AnswerFile(options.out, items)
    changes_nothing = ("file", "out", "texts", "batch_size", "fsdp", "tensor", "traceback", "mode")
    made = {name: value for name, value in vars(options).items() if name not in changes_nothing}
    out.check_made_by({**made, "mode": mode, "step": trained.step})
    if out.done:
        console.print(f"{options.out} holds {out.done} answers already: going on after them.")
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    chunk = 8 * options.batch_size  # lines that are sorted by length together
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(items), completed=out.done)
        how = dataclasses.replace(how, on_batch=lambda n: progress.advance(task, n))
        for first in range(out.done, len(items), chunk):
            numbers = range(first, min(first + chunk, len(items)))
            some = [items[i] for i in numbers]
            out.append(answer(trained, mode, some, how, numbers))
    console.print(f"{options.out} holds {len(items)} answers.")
    if options.examples and mode in WRITING and all(options.answer in item for item in items):
        field = "expected" if options.answer == "answer" else options.answer
        right = out.count(lambda r: r["answer"].strip() == str(r[field]).strip())
        console.print(f"Exact match: {right} of {len(items)} ({right / len(items):.1%}).")


if __name__ == "__main__":
    verbs.run("predict")
