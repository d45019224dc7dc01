"""Plans a training: what a budget is best spent on, or what a run takes.

    pretrax plan --flops=1e21                                     size and tokens for a budget
    pretrax plan --chips=64 --of=v5p --hours=24                   the same, of chips and hours
    pretrax plan --gin_file=runs/t5_1_1_base_c4.gin --chips=8 --of=v5e      what a run takes
    pretrax plan --parameters=175e9 --tokens=300e9                what a size and tokens take

Sizes for a budget follow a scaling law of causal language models on web text (Hoffmann et al. 2022, fitted
again by Besiroglu et al. 2024), and six FLOPs for each parameter and token; other objectives and
other text have other laws. What a run takes follows its own shapes.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from pretrax import verbs
from pretrax.comparing.requirements import (
    DAY,
    GIB,
    MEMORY,
    PETAFLOP_DAY,
    VOCABULARY,
    Chips,
    Requirements,
    chip_kind,
    requirements,
    shards_of_state,
)
from pretrax.comparing.scaling import FLOPS_PER_PARAMETER, REPLICATED
from pretrax.training.command_line import add_gin_arguments, mistakes_in_words, parse_with_gin
from pretrax.training.configuration import read_fields

ADAM_BYTES = 16  # of a parameter: itself, its gradient and two moments, in float32


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options, given = parse_with_gin(parser, argv)
    if mistake := mistake_of(options, given.files):
        parser.error(mistake)
    console = Console(highlight=False)
    with mistakes_in_words(options.traceback):
        chips = Chips(chip_kind(options.of), options.chips, options.mfu) if options.of else None
        if given.files:
            fields = read_fields(given.files, given.bindings, given.search_paths, given.trusted)
            print_run(console, fields, requirements(fields), chips)
        elif options.parameters:
            print_columns(console, [size_figures(options.parameters, options.tokens, chips)])
            print_assumptions(console, chips)
        else:
            print_budget(console, budget_of(options, chips), chips)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=verbs.as_typed("pretrax plan"),
        description=verbs.as_typed(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("a budget").add_argument
    add("--flops", type=above_zero, metavar="N", help="of the whole training, such as 1e21")
    add("--hours", type=above_zero, metavar="N", help="of all the chips")
    add = parser.add_argument_group("a size").add_argument
    add("--parameters", type=above_zero, metavar="N", help="of a model, such as 7e9")
    add("--tokens", type=above_zero, metavar="N", help="that it is trained on, such as 2e12")
    add = parser.add_argument_group("chips").add_argument
    add("--chips", type=int, metavar="N", help="their number (default: 1)")
    kinds = ", ".join(kind.split()[-1] for kind in MEMORY)
    add("--of", metavar="KIND", help=f"one of {kinds}")
    share = "share of their peak that a step reaches (default: 0.4)"
    add("--mfu", type=above_zero, default=0.4, metavar="SHARE", help=share)
    add_gin_arguments(parser)
    return parser


def above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def mistake_of(options: argparse.Namespace, files: Sequence[str]) -> str | None:
    kinds = {
        "--gin_file": bool(files),
        "--parameters and --tokens": bool(options.parameters or options.tokens),
        "--flops": bool(options.flops),
        "--hours": bool(options.hours),
    }
    asked = [name for name, given in kinds.items() if given]
    mistakes = {
        "--chips and --of go together": bool(options.chips) != bool(options.of),
        "--chips must be 1 or more": options.chips is not None and options.chips < 1,
        "--mfu is a share of the peak, 1 at most": options.mfu > 1,
        "--hours are of chips: give --chips and --of": options.hours and not options.of,
        "--parameters and --tokens go together": bool(options.parameters) != bool(options.tokens),
        f"give one of {', '.join(kinds)}, got {' and '.join(asked) or 'none'}": len(asked) != 1,
    }
    return next((words for words, wrong in mistakes.items() if wrong), None)


def budget_of(options: argparse.Namespace, chips: Chips | None) -> float:
    if options.flops:
        return options.flops
    assert chips is not None  # `mistake_of` has looked
    return options.hours * 3600 * chips.flops_per_second


# --- what is printed -----------------------------------------------------------------------------


def print_budget(console: Console, flops: float, chips: Chips | None) -> None:
    """A budget, and beside it a tenth and ten times as much."""
    best = {share * flops: REPLICATED.optimum(share * flops) for share in (0.1, 1.0, 10.0)}
    print_columns(console, [size_figures(x.parameters, x.tokens, chips) for x in best.values()])
    print_assumptions(console, chips)
    middle = best[flops]
    size = f"--parameters={middle.parameters:.2g} --tokens={middle.tokens:.2g}"
    console.print(verbs.as_typed(f"Next: pretrax plan {size} --chips=64 --of=v5p"))


def size_figures(parameters: float, tokens: float, chips: Chips | None) -> dict[str, str]:
    flops = FLOPS_PER_PARAMETER * parameters * tokens
    figures = {
        "parameters": amount(parameters),
        "tokens": amount(tokens),
        "tokens a parameter": f"{tokens / parameters:.3g}",
        "nats a token, by the law": f"{REPLICATED.loss(parameters, tokens):.2f}",
        "FLOPs": f"{flops:.3g}",
        "petaflop/s-days": f"{flops / PETAFLOP_DAY:,.3g}",
        "memory of the state": f"{ADAM_BYTES * parameters / GIB:,.3g} GiB",
    }
    if chips:
        seconds = flops / chips.flops_per_second
        least = -(-ADAM_BYTES * parameters // (chips.gib * GIB))
        figures |= {
            f"time on {chips.number} {chips.kind}": duration(seconds),
            "chip-days": f"{seconds / DAY * chips.number:,.3g}",
            f"{chips.kind} that hold the state": f"{least:,.0f}",
        }
    return figures


def print_run(console: Console, fields: dict, needs: Requirements, chips: Chips | None) -> None:
    def figures(steps: int) -> dict[str, str]:
        flops = needs.flops * steps
        found = {
            "steps": f"{steps:,}",
            "tokens of text": amount(needs.text_tokens * steps),
            "FLOPs": f"{flops:.3g}",
            "petaflop/s-days": f"{flops / PETAFLOP_DAY:,.3g}",
        }
        if chips:
            seconds = flops / chips.flops_per_second
            found[f"time on {chips.number} {chips.kind}"] = duration(seconds)
        return found

    work = f"{needs.flops_per_token:.3g} FLOPs a token of text"
    console.print(f"{amount(needs.parameters)} parameters, {work}")
    print_columns(console, [figures(steps) for steps in filter(None, (1, needs.steps))])
    shards = shards_of_state(fields)
    spread = f", spread over {shards} devices" if shards > 1 else ""
    has = f" of the {chips.gib} of a {chips.kind}" if chips else ""
    console.print(
        f"Memory of a device: {needs.state_bytes / shards / GIB:.3g} GiB{has} for parameters, "
        f"gradients and optimizer{spread}; activations come on top."
    )
    if not fields.get("vocabulary_rows"):
        console.print(
            f"The vocabulary has {VOCABULARY:,} rows; training.Run.vocabulary_rows sets it."
        )
    print_utilisation(console, chips)


def print_assumptions(console: Console, chips: Chips | None) -> None:
    console.print(
        f"{FLOPS_PER_PARAMETER} FLOPs and {ADAM_BYTES} bytes (Adam) a parameter; activations come on top. "
        "The law is of causal language models on web text."
    )
    print_utilisation(console, chips)


def print_utilisation(console: Console, chips: Chips | None) -> None:
    if chips:
        console.print(f"At {chips.utilisation:.0%} of the peak of {chips.kind} (--mfu).")


def print_columns(console: Console, columns: Sequence[dict[str, str]]) -> None:
    """A line for each figure, a column for each case."""
    table = Table("", *(Column(justify="right") for _ in columns), box=None, show_header=False)
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)


def amount(number: float) -> str:
    """A number of parameters or tokens: 1.5M, 7.2B, 1.3T."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    units = ((DAY, "days"), (3600, "hours"), (60, "minutes"), (1, "s"))
    size, name = next(unit for unit in units if seconds >= unit[0] or unit[0] == 1)
    return f"{seconds / size:,.3g} {name}"


if __name__ == "__main__":
    verbs.run("plan")
