"""Modes that write a text in another order than from left to right."""

import dataclasses
from collections.abc import Sequence
from functools import partial

from ..answering.answers import Options
from ..answering.continued_blocks import continue_blocks
from ..answering.generation import Decoding
from ..answering.insertions import insert
from ..answering.masks import denoise, unmask
from ..trained import Mode, Trained, check_prompted, register_mode
from .guesses import MASKED, check_predicts_masks, mask_form


def _settings(options: Options) -> dict:
    """Returns what all of these take; raises ValueError for settings that they do not use."""
    decoding = options.decoding
    if decoding != dataclasses.replace(
        Decoding(max_new=decoding.max_new, batch_size=decoding.batch_size, seed=decoding.seed),
        temperature=decoding.temperature,
    ):
        raise ValueError(
            "Got a filter, a penalty, beams, samples, stops or drafts, expected none: unmasking "
            "draws one text, with a temperature alone."
        )
    return dict(
        temperature=decoding.temperature,
        seed=decoding.seed,
        numbers=options.numbers,
        batch_size=decoding.batch_size,
        on_batch=options.on_batch,
    )


def _unmasked(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    settings = _settings(options)
    found = unmask(trained, texts, steps=options.steps, order=options.order, **settings)
    return [{"answer": text} for text in found]


def _denoised(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    found = denoise(trained, texts, steps=options.steps, **_settings(options))
    return [{"answer": text} for text in found]


def _inserted(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    found = insert(trained, texts, max_new=options.decoding.max_new, **_settings(options))
    return [{"answer": one.text, "ended": one.ended} for one in found]


def _blocks(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    found = continue_blocks(
        trained,
        texts,
        max_new=options.decoding.max_new,
        steps=options.steps,
        order=options.order,
        **_settings(options),
    )
    return [{"answer": one.text, "ended": one.ended} for one in found]


def _register(name: str, what: str, trained_by: str, **others) -> None:
    check = partial(check_prompted, mode=name, what=what, trained_by=trained_by)
    register_mode(Mode(name=name, check=check, **others))


register_mode(
    Mode(
        name="unmask",
        about="writes all [MASK]s, by --order",
        layouts=("encoder", "decoder"),
        answer=_unmasked,
        form=mask_form,
        learned_as=MASKED,
        check=lambda trained: check_predicts_masks(trained, "unmask"),
        options=("masks", "steps", "order", "temperature"),
    )
)
_register(
    "denoise",
    "from random tokens alone",
    "uniform_diffusion",
    about="writes all [MASK]s, again and again from random text",
    layouts=("encoder", "decoder"),
    answer=_denoised,
    options=("masks", "steps", "temperature"),
)
_register(
    "insert",
    "to insert tokens",
    "insertion_lm",
    about="inserts tokens, wherever they are missing",
    layouts=("encoder",),
    answer=_inserted,
    options=("temperature",),
)
_register(
    "blocks",
    "to write blocks",
    "block_diffusion",
    about="goes on from a text, a block of tokens at a time, by --order",
    layouts=("decoder", "encoder_decoder"),
    answer=_blocks,
    options=("steps", "order", "temperature"),
)
