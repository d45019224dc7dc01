"""Modes that generate in an order other than left to right."""

import dataclasses
from collections.abc import Sequence
from functools import partial

from ..answering.continued_blocks import continue_blocks
from ..answering.flowing import follow_flow
from ..answering.insertions import Written, insert
from ..answering.options import Decoding, Options
from ..answering.unmasking import FillingMode, Unmasking, unmask
from ..trained import Mode, Trained, check_trained_for, register_mode
from .guesses import MASK_MODE, MASKED_TEXT


def _check_single_draw(options: Options) -> None:
    """Raises ValueError for settings of decoding that none of these modes uses."""
    decoding = options.decoding
    if decoding != dataclasses.replace(
        Decoding(max_new=decoding.max_new, batch_size=decoding.batch_size, seed=decoding.seed),
        temperature=decoding.temperature,
    ):
        raise ValueError(
            "Got a filter, a penalty, beams, samples, stops or drafts, expected none: this mode "
            "supports only a temperature."
        )


def _unmasking(options: Options) -> Unmasking:
    _check_single_draw(options)
    decoding = options.decoding
    return Unmasking(options.order, options.steps, decoding.temperature, decoding.seed)


def _unmasked(
    mode: FillingMode, trained: Trained, texts: Sequence[str], options: Options
) -> list[dict]:
    filled = unmask(trained, texts, _unmasking(options), mode=mode, batching=options.batching)
    return [{"answer": text} for text in filled]


def _flowed(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    _check_single_draw(options)
    decoding = options.decoding
    if decoding.temperature:
        raise ValueError(
            "Got a temperature above 0, expected 0: a flow samples only its initial noise. For "
            "another text, set another seed."
        )
    filled = follow_flow(
        trained, texts, steps=options.steps, seed=decoding.seed, batching=options.batching
    )
    return [{"answer": text} for text in filled]


def _inserted(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    _check_single_draw(options)
    decoding = options.decoding
    inserted = insert(
        trained,
        texts,
        max_new=decoding.max_new,
        temperature=decoding.temperature,
        seed=decoding.seed,
        batching=options.batching,
    )
    return _records(inserted)


def _blocks(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    unmasking = _unmasking(options)
    max_new = options.decoding.max_new
    return _records(
        continue_blocks(trained, texts, unmasking, max_new=max_new, batching=options.batching)
    )


def _records(answers: Sequence[Written]) -> list[dict]:
    return [{"answer": answer.text, "ended": answer.ended} for answer in answers]


register_mode(
    Mode(
        name="unmask",
        about="fills all [MASK]s, in the order --order",
        layouts=("encoder", "decoder"),
        answer=partial(_unmasked, "unmask"),
        options=("masks", "steps", "order", "temperature"),
        **MASK_MODE,
    )
)
register_mode(
    Mode(
        name="denoise",
        about="fills all [MASK]s by denoising random text",
        layouts=("encoder", "decoder"),
        reads_only_frame=True,
        answer=partial(_unmasked, "denoise"),
        teaches="to denoise random tokens",
        objectives="uniform_diffusion",
        check=check_trained_for,
        example=MASKED_TEXT,
        options=("masks", "steps", "temperature"),
    )
)
register_mode(
    Mode(
        name="flow",
        about="fills all [MASK]s by a flow from noise to the embeddings of a text",
        layouts=("encoder",),
        reads_only_frame=True,
        answer=_flowed,
        teaches="to restore noised embeddings",
        objectives="embedding_diffusion",
        check=check_trained_for,
        example=MASKED_TEXT,
        options=("masks", "steps"),
    )
)
register_mode(
    Mode(
        name="insert",
        about="inserts missing tokens",
        layouts=("encoder",),
        answer=_inserted,
        teaches="to insert tokens",
        objectives="insertion_lm",
        check=check_trained_for,
        options=("temperature",),
    )
)
register_mode(
    Mode(
        name="blocks",
        about="continues a text block by block, in the order --order",
        layouts=("decoder", "encoder_decoder"),
        reads_only_frame=True,
        answer=_blocks,
        teaches="to write blocks",
        objectives="block_diffusion",
        check=check_trained_for,
        options=("steps", "order", "temperature"),
    )
)
