"""Fill-in-the-middle on characters: texts are cut before they are tokenized, as for StarCoder.

A model that is trained with cuts between tokens cannot continue inside a word.
`objectives.fill_in_the_middle` cuts between tokens on the device; this module cuts between
characters on the host. No later step of the task may trim the examples:

    preprocessors=[rekey, character_infilling(name="my_infilling")]

Sources: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle"; Li et
al. 2023, "StarCoder: may the source be with you!".
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ...constraints import Share, checked
from ...corpora.vocabularies.tokenization import Tokenizer
from ...data import stable_draws
from ...objectives import TokenIds, fill_in_the_middle
from .quiet_tensorflow import seqio, tf
from .seqio_vocabularies import tokenizer_and_ids


@checked
def character_infilling(
    *,
    name: str,
    text: str = "targets",
    feature: str = "targets",
    rate: Share = 0.5,
    spm_rate: Share = 0.5,
    spm: Literal["spm", "spmv2"] = "spmv2",
    sentinels: int = 128,
) -> Callable[..., tf.data.Dataset]:
    """Returns a preprocessor that converts texts to token ids with the middle last.

        {"targets": "x = f(y)"}  ->  {"targets": ids of <prefix>x =<suffix>y)<middle> f(</s>}

    Texts that do not fit `sequence_length` are halved until they fit, and then rearranged, so no
    middle is cut off. Random draws depend only on SeqIO's seed for the text and on the CRC-32 of
    `name`. They do not depend on batches, workers or the step at which a run was resumed.

    Args:
        name: name of the task, since SeqIO gives all members of a mixture the same seeds.
        text: name of the feature with the text.
        feature: name of the output feature, whose vocabulary encodes the text.
        rate: share of texts that are rearranged.
        spm_rate: share of the rearranged texts that begin with their suffix.
        spm: form of these texts: "spmv2" or "spm".
        sentinels: number of sentinel ids (`special_tokens.token_ids`).

    Raises ValueError when the dataset is made if the vocabulary has no markers, or if the encoded
    parts of a text do not decode to the text.
    """

    def preprocess(dataset: tf.data.Dataset, sequence_length, output_features) -> tf.data.Dataset:
        vocabulary = output_features[feature].vocabulary
        tokenizer, ids = tokenizer_and_ids(vocabulary, sentinels=sentinels)
        fill_in_the_middle(ids)  # rejects ids without markers
        if tokenizer.spaced:
            raise ValueError(
                f"The vocabulary {tokenizer.path} puts a space before every text, and therefore "
                "between the parts of a text: use bytes, a SentencePiece model without a dummy "
                "prefix or a byte-level BPE, or cut between tokens with "
                "objectives.fill_in_the_middle."
            )
        longest = sequence_length[feature] if sequence_length else None

        def pieces(written, seed):
            seeds = (*(int(x) for x in seed.astype(np.uint32)), zlib.crc32(name.encode()))
            fitting = infill_to_fit(
                written.decode("utf-8"), tokenizer, ids, seeds, longest, rate, spm_rate, spm
            )
            lengths = np.asarray([len(piece) for piece in fitting], np.int32)
            return np.concatenate(fitting), lengths

        def infill(example, seed):
            tokens, lengths = tf.numpy_function(
                pieces, [example[text], seed], [tf.int32, tf.int32], stateful=False
            )
            tokens.set_shape([None])
            lengths.set_shape([None])
            return tf.RaggedTensor.from_row_lengths(tokens, lengths)

        rearranged = seqio.map_over_dataset(infill, num_seeds=1)(dataset)
        return rearranged.unbatch().map(lambda tokens: {feature: tokens})

    return preprocess


def infill_to_fit(
    text: str,
    tokenizer: Tokenizer,
    ids: TokenIds,
    seeds: Sequence[int],
    longest: int | None,
    *settings,
) -> list[np.ndarray]:
    """Applies `infill_characters` to a text, or to halves, quarters, … that are short enough."""
    tokens = infill_characters(text, tokenizer, ids, seeds, *settings)
    if longest is None or len(tokens) <= longest or len(text) < 2:
        return [tokens]
    middle = len(text) // 2
    halves = (text[:middle], (*seeds, 0)), (text[middle:], (*seeds, 1))
    return [
        piece
        for half, half_seeds in halves
        for piece in infill_to_fit(half, tokenizer, ids, half_seeds, longest, *settings)
    ]


def infill_characters(
    text: str,
    tokenizer: Tokenizer,
    ids: TokenIds,
    seeds: Sequence[int],
    rate: float = 0.5,
    spm_rate: float = 0.5,
    spm: str = "spmv2",
) -> np.ndarray:
    """Returns the token ids of a text with its middle moved to the end, and end-of-sequence.

    A text of n characters is cut at two independent indices, each uniform among all n + 1. Prefix,
    middle and suffix are tokenized separately. The result has one of the forms of
    `objectives.fill_in_the_middle`. A text that is not rearranged is tokenized as a whole.

    Args:
        ids: special ids, which must include `fim`.
        seeds: whole numbers such as (seed of the run, number of the document). They are the only
            source of randomness.

    Returns:
        i32[n].
    """
    draws = stable_draws.drawn_bits(seeds, 4)
    chances = stable_draws.uniform(draws[:2])
    first, second = sorted(int(x) for x in draws[2:] % np.uint64(len(text) + 1))
    if chances[0] >= rate:
        return np.append(tokenizer.encode_batch([text])[0], np.int32(ids.eos))
    parts = text[:first], text[first:second], text[second:]
    prefix, middle, suffix = tokenizer.encode_batch(parts)
    *markers, eos = np.asarray([*ids.fim, ids.eos], np.int32).reshape(4, 1)
    before, after, between = markers
    if chances[1] >= spm_rate:
        form = (before, prefix, after, suffix, between, middle)
    elif spm == "spm":
        form = (after, suffix, before, prefix, between, middle)
    else:
        form = (before, after, suffix, between, prefix, middle)
    return np.concatenate([*form, eos])
