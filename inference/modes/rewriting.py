"""Modes that generate in an order other than left to right."""

from collections.abc import Callable, Sequence
from functools import partial

from ..answering.continued_blocks import continue_blocks
from ..answering.flowing import follow_flow
from ..answering.insertions import insert
from ..answering.options import Options
from ..answering.unmasking import unmask
from ..trained import Mode, Trained, check_trained_for, register_mode
from .guesses import MASK_MODE, MASKED_TEXT


def _filled(fill: Callable, trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    return [{"answer": text} for text in fill(trained, texts, options)]


def _written(
    write: Callable, trained: Trained, texts: Sequence[str], options: Options
) -> list[dict]:
    return [{"answer": text, "ended": ended} for text, ended in write(trained, texts, options)]


register_mode(
    Mode(
        name="unmask",
        about="fills all [MASK]s, in the order --order",
        layouts=("encoder", "decoder"),
        answer=partial(_filled, unmask),
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
        answer=partial(_filled, partial(unmask, mode="denoise")),
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
        answer=partial(_filled, follow_flow),
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
        answer=partial(_written, insert),
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
        answer=partial(_written, continue_blocks),
        teaches="to write blocks",
        objectives="block_diffusion",
        check=check_trained_for,
        options=("steps", "order", "temperature"),
    )
)
