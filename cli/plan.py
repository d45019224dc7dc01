"""Plans a training run: the best model size for a budget, or the cost of a run.

    pretrax plan --flops=1e21                                     size and tokens for a budget
    pretrax plan --chips=64 --of=v5p --hours=24                   the same, from chips and hours

    pretrax plan t5_1_1_base_c4 --chips=8 --of=v5e                cost of a run
    pretrax plan decoder --model=gpt2 --chips=8 --of=v5e          the same with another model

    pretrax plan --parameters=175e9 --tokens=300e9                cost of a size and tokens
    pretrax plan --flops=1e14 --law=comparisons/scaling           with a law from your own runs

Sizes for a budget follow a scaling law of causal language models on web text (Hoffmann et al. 2022,
fitted again by Besiroglu et al. 2024). They assume six FLOPs for each parameter and token. Other
objectives and other text have other laws: --law takes the law of a comparison of sizes and budgets.
The cost of a run follows from its own shapes.
"""

import argparse
from collections.abc import Collection, Sequence

from ..comparison.scaling.laws_of_comparisons import law_of_directory
from ..comparison.scaling.plan_tables import print_budget, print_run, print_size
from ..comparison.scaling.requirements import Chips, requirements
from ..constraints import listed
from ..settings.command_line import GinFiles, at_least, given_options
from ..settings.printable import PrintableConsole
from ..settings.user_errors import report_user_errors
from ..training.devices.accelerators import kind_of_name, short_names
from ..training.run_choices import QUICKSTART, add_run_arguments, parse_run
from . import make_parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of_plans()
    options, gin, typed = parse_run(
        parser, argv, default=lambda names: QUICKSTART if names else None
    )
    if mistake := mistake_of(options, gin, given_options(parser, options, argv)):
        parser.error(mistake)
    console = PrintableConsole()
    with report_user_errors(options.traceback, chosen=typed.combined):
        law = law_of_directory(options.law) if options.law else None
        chips = Chips(kind_of_name(options.of), options.chips, options.mfu) if options.of else None
        if gin.files:
            fields = gin.reader().settings()
            print_run(console, fields, requirements(fields), chips)
        elif options.parameters:
            print_size(console, options.parameters, options.tokens, chips, law)
        else:
            print_budget(console, budget_of(options, chips), chips, law)


def parser_of_plans() -> argparse.ArgumentParser:
    parser = make_parser("plan", __doc__)
    add = parser.add_argument_group("a budget").add_argument
    add("--flops", type=above_zero, metavar="N", help="FLOPs of the whole run, such as 1e21")
    add("--hours", type=above_zero, metavar="N", help="hours on all the chips")
    measured = "directory of `pretrax compare scaling`, whose law is used"
    add("--law", metavar="DIRECTORY", help=measured)
    add = parser.add_argument_group("a size").add_argument
    add("--parameters", type=above_zero, metavar="N", help="parameters of a model, such as 7e9")
    add("--tokens", type=above_zero, metavar="N", help="tokens to train on, such as 2e12")
    add = parser.add_argument_group("chips").add_argument
    add("--chips", type=at_least(1), metavar="N", help="number of chips (default: 1)")
    kinds = ", ".join(short_names())
    add("--of", metavar="KIND", help=f"kind of the chips: one of {kinds}")
    share = "share of the peak FLOP/s that a step reaches (default: 0.4)"
    add("--mfu", type=above_zero, default=0.4, metavar="SHARE", help=share)
    add_run_arguments(parser)
    return parser


def above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def mistake_of(options: argparse.Namespace, gin: GinFiles, typed: Collection[str]) -> str | None:
    kinds = {
        "RUN (or --gin_file)": bool(gin.files),
        "--parameters and --tokens": bool(options.parameters or options.tokens),
        "--flops": bool(options.flops),
        "--hours": bool(options.hours),
    }
    asked = [name for name, is_given in kinds.items() if is_given]
    mistakes = {
        "--chips and --of go together": bool(options.chips) != bool(options.of),
        "--mfu is a share of the peak, 1 at most": options.mfu > 1,
        "--hours needs chips: give --chips and --of": options.hours and not options.of,
        "--law goes with a budget or a size: a run's cost follows from its shapes": bool(
            options.law and gin.files
        ),
        "--mfu needs chips: give --chips and --of": "mfu" in typed and not options.of,
        "--gin.NAME=VALUE is a setting of a run: give RUN or --gin_file": bool(
            gin.bindings and not gin.files
        ),
        "--parameters and --tokens go together": bool(options.parameters) != bool(options.tokens),
        f"give one of {', '.join(kinds)}, got {listed(asked) or 'none'}": len(asked) != 1,
    }
    return next((message for message, is_wrong in mistakes.items() if is_wrong), None)


def budget_of(options: argparse.Namespace, chips: Chips | None) -> float:
    if options.flops:
        return options.flops
    assert chips is not None  # `mistake_of` has checked this
    return options.hours * 3600 * chips.flops_per_second
