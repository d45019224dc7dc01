"""Options of `pretrax predict`: how answers are decoded, and which modes use which option."""

import argparse
from collections.abc import Collection

WRITING = ("continue", "complete", "respond", "restore")  # modes whose answer is a text of its own
_DECODING = (*WRITING, "infill", "middle")
# The modes that use an option; others stand beside any mode.
_USED_BY: dict[str, tuple[str, ...]] = {
    "denoiser": ("complete", "infill", "respond", "restore", "score"),
    "top": ("mask", "classify"),
    "masks": ("mask", "unmask"),
    "layer": ("states",),
    **dict.fromkeys(("steps", "order"), ("unmask",)),
    **dict.fromkeys(("pooling", "against"), ("embed",)),
    **dict.fromkeys(
        ("top_k", "top_p", "min_p", "repetition_penalty", "beams", "length_penalty"), _DECODING
    ),
    **dict.fromkeys(("samples", "stop", "own_drafts", "draft"), _DECODING),
    "temperature": (*_DECODING, "unmask"),
}


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of decoding, named as in `inference.Decoding`, and of drafts."""
    add = parser.add_argument_group("decoding").add_argument
    add("--max_new", type=int, metavar="N", default=64, help="tokens of an answer, at most")
    add("--temperature", type=float, metavar="X", default=0.0, help="0: the likeliest token")
    add("--top_k", type=int, metavar="N", help="sample among the N likeliest tokens")
    add("--top_p", type=float, metavar="P", help="among the likeliest of probability P together")
    add("--min_p", type=float, metavar="P", help="among those of P times the likeliest's or more")
    repeated = "divide the logits of tokens that stand there already"
    add("--repetition_penalty", type=float, metavar="X", default=1.0, help=repeated)
    add("--beams", type=int, metavar="N", default=1, help="beam search with N beams; 1: none")
    longer = "of beams: above 1 prefers longer answers"
    add("--length_penalty", type=float, metavar="X", default=1.0, help=longer)
    add("--samples", type=int, metavar="N", default=1, help="answers to each text")
    add("--stop", action="append", default=[], help="end before this text; repeatable")
    add("--seed", type=int, metavar="N", default=0, help="of samples")
    own = "speculative decoding with the heads that multi_token_prediction trained"
    add("--own_drafts", action="store_true", help=own)
    add("--draft", metavar="RUN", help="speculative decoding with a smaller model")
    add("--draft_tokens", type=int, metavar="N", default=4, help="drafts a step of that model")


def check_used(given: Collection[str], mode: str) -> None:
    """Raises ValueError for an option that was given and that the mode does not use."""
    for name, modes in _USED_BY.items():
        if mode not in modes and name in given:
            raise ValueError(
                f"Got --{name} in mode {mode!r}, which does not use it: leave it out, or give --mode; "
                f"modes that use it: {', '.join(modes)}."
            )
