"""Trains a SentencePiece vocabulary that gives back any text exactly."""

import io
import re
from collections.abc import Iterable
from typing import Literal

from ...constraints import checked
from ...settings.atomic_writes import write_bytes
from .training_sample import CHARACTERS, training_sample

SMALLEST_SIZE = 512  # 3 special ids, 256 bytes, and the printable ASCII characters

SentencePieceType = Literal["bpe", "unigram"]


@checked
def train_sentencepiece(
    texts: Iterable[str],
    path: str,
    *,
    size: int = 4096,
    model_type: SentencePieceType = "bpe",
    sample_characters: int = CHARACTERS,
) -> None:
    """Trains a vocabulary on a sample of `texts` and writes it to `path` (a `.model` file).

    Nothing is normalized: spaces, tabs and line ends are kept, and characters outside the
    vocabulary become bytes, so nothing is unknown and decoding gives back the text. Ids: pad 0,
    eos 1, unk 2 (never produced), bytes 3 … 258, then pieces. The same texts give the same model.

    "bpe" takes about 0.5 s on 3 million characters, "unigram" (T5's kind) about 8 s; on the
    sources of Python's library they compress alike, 3.5 characters a token at size 4096.

    The sample has about `sample_characters`, spread evenly over the documents, which are read once.
    `size` counts all ids.

    Raises ValueError for no text, and for a size too small or too large for it.
    """
    import sentencepiece

    if size < SMALLEST_SIZE:
        raise ValueError(
            f"Got a vocabulary size of {size}, expected at least {SMALLEST_SIZE} (256 bytes, the "
            "characters and some pieces): raise vocabularies.trained.size, or give the corpus "
            "vocabularies.utf8_bytes."
        )
    sample = training_sample(texts, sample_characters)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=size,
            model_type=model_type,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            required_chars="".join(map(chr, range(33, 127))),  # printable ASCII
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            num_threads=2,  # fixed: the order of floating-point sums is part of the result
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except RuntimeError as error:
        found = re.search(r"<= (\d+)", str(error))
        if not found:
            raise ValueError(f"SentencePiece could not train on this text: {error}") from error
        largest = int(found[1])
        if largest < SMALLEST_SIZE:
            raise ValueError(
                f"Got too little text for a vocabulary of {size}: at most {largest} ids, expected "
                f"{SMALLEST_SIZE}. Give more text, or give the corpus vocabularies.utf8_bytes."
            ) from error
        raise ValueError(
            f"Got a vocabulary size of {size}, expected at most {largest} for this text: lower "
            f"vocabularies.trained.size (--gin.vocabularies.trained.size={largest}), give more "
            "text, or give the corpus vocabularies.utf8_bytes."
        ) from error
    write_bytes(path, model.getvalue())
