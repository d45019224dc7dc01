"""The mode of `--score`: log-probabilities of texts and their tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...settings.printable import plain_table, print_note
from ..answering.answers import text_field
from ..answering.options import Options
from ..answering.scoring import score
from ..prompting.items import text_of_item
from ..trained import Mode, Trained, register_mode

MAX_TABLE_TOKENS = 64  # maximum number of tokens in a table


def _scores(trained: Trained, pairs: Sequence[tuple[str, str]], options: Options) -> list[dict]:
    records = []
    for scored in score(trained, pairs, options):
        likelihood = {"log_prob": scored.log_prob, "bits_per_byte": scored.bits_per_byte}
        record = {
            **(likelihood if scored.exact else {"pseudo_log_prob": scored.log_prob}),
            "tokens": len(scored.tokens),
            "token_log_probs": [list(pair) for pair in zip(scored.tokens, scored.log_probs)],
        }
        records.append(record)
    return records


def _text_and_target(item: dict) -> tuple[str, str]:
    text = text_of_item(item)
    return (text, text_field(item, "target")) if "target" in item else ("", text)


def _items(texts: Sequence[str], options: Mapping[str, Any]) -> list[dict]:
    target = options.get("target")
    scored = {} if target is None else {"target": target}
    return [{"text": text, **scored} for text in texts]


def _mistake(arguments) -> str | None:
    if arguments.target is not None and not arguments.score:
        return "--target needs --score: add --score"
    if arguments.target is not None and arguments.file:
        return '--target does not apply to --file, whose lines have a field "target"'
    return None


def _show(console: Console, item: dict, record: dict) -> None:
    summary = f"over {record['tokens']} tokens"
    if "pseudo_log_prob" in record:
        summary = f"{record['pseudo_log_prob']:.3f} nats {summary}, each given all others"
    else:
        bits = f"{record['bits_per_byte']:.3f} bits per byte"
        summary = f"{record['log_prob']:.3f} nats {summary}, {bits}"
    scored = item.get("target", item["text"])
    print_note(console, f"{summary}: {scored!r}")
    if len(record["token_log_probs"]) > MAX_TABLE_TOKENS:
        console.print("--file and --out write the log-probability of each token.", style="dim")
        return
    table = plain_table("token", "p", "nats")
    for name, log_prob in record["token_log_probs"]:
        table.add_row(Text(repr(name)), f"{math.exp(log_prob):.3g}", f"{log_prob:.3f}")
    console.print(table)


register_mode(
    Mode(
        name="score",
        about="prints the log-probability of a text",
        read=_text_and_target,
        answer=_scores,
        needs_training=False,
        is_flag=True,
        items=_items,
        options=("denoiser",),
        arguments={"target": {"help": "with --score: the text to score, given TEXT before it"}},
        mistake=_mistake,
        show=_show,
    )
)
