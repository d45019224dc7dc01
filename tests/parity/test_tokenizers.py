"""Tokenizers that `corpora.vocabularies.tokenizer_json` writes give the same ids in `transformers`.

Decoding gives back the same text.
"""

import argparse
import inspect
import json
import random

import pytest
import transformers

from pretrax.corpora.vocabularies import Vocabulary, tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.corpora.vocabularies.special_tokens import special_names, token_ids
from pretrax.corpora.vocabularies.tokenizer_json import PROBES, write_tokenizer
from pretrax.models.hugging_face import FAMILIES

CODE = inspect.getsource(argparse)


@pytest.fixture(scope="module", params=["bpe", "unigram", "bytes"])
def both_tokenizers(request, tmp_path_factory):
    """Returns our codec, and the tokenizer that `transformers` reads from it."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = tokenization.byte_tokenizer()
    if request.param != "bytes":
        path = str(folder / "vocabulary.model")
        train_sentencepiece([CODE], path, size=900, model_type=request.param)
        tokenizer = tokenization.sentencepiece_tokenizer(path)
    ours = Vocabulary(tokenizer, token_ids(tokenizer), {})
    write_tokenizer(str(folder), ours)
    return ours, transformers.AutoTokenizer.from_pretrained(folder)


def texts(runs):
    """Returns slices of code and of unusual characters. `runs` adds long runs of one character."""
    draw = random.Random(0)
    odd = [*" \n\t▁é🤖#=-", "self", "  ", "\r\n", "日本"]
    for _ in range(300):
        at = draw.randrange(len(CODE) - 200)
        text = CODE[at : at + draw.randrange(200)]
        if not runs:  # a unigram model has several equally likely segmentations of such runs
            yield "".join(c for i, c in enumerate(text) if c.isalnum() or text[i - 1] != c)
        else:
            yield text
            yield "".join(draw.choices(odd, k=draw.randrange(40)))


def test_text_ids_match_and_decode_back(both_tokenizers):
    ours, theirs = both_tokenizers
    unigram = "unigram" in (ours.tokenizer.path or "")
    for text in [*PROBES, *texts(runs=not unigram)]:
        if any(name in text for name in ours.tokenizer.named):
            continue  # a special token in `transformers`, and text here
        expected = ours.tokenizer.encode_batch([text])[0].tolist()
        assert theirs(text).input_ids == expected
        assert theirs.decode(expected) == text


# Next to a qwen2 model, AutoTokenizer uses Qwen2Tokenizer regardless of tokenizer_config.json.
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in ("mt5", "qwen2")])
def test_tokenizer_is_independent_of_model_family(both_tokenizers, kind, tmp_path):
    """`transformers` would otherwise choose the family's tokenizer class by config.json."""
    ours, theirs = both_tokenizers
    write_tokenizer(str(tmp_path), ours)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*PROBES[:-1], "a<extra_id_2>[S] b"):
        assert exported(text).input_ids == theirs(text).input_ids
        assert exported.decode(exported(text).input_ids) == text
    assert exported.all_special_ids == theirs.all_special_ids


def test_special_token_ids_match(both_tokenizers):
    ours, theirs = both_tokenizers
    ids, names = ours.ids, special_names(*ours[:2])
    assert len(theirs) == ids.size
    for i, name in names.items():
        assert theirs(f"a{name}b").input_ids[1] == i
        assert i in theirs.all_special_ids, name
    assert (theirs.pad_token_id, theirs.eos_token_id) == (ids.pad, ids.eos)
    assert (theirs.mask_token_id, theirs.cls_token_id) == (ids.mask, ids.cls)
    text = theirs.decode([*ids.sentinels, *theirs("text").input_ids], skip_special_tokens=True)
    assert text == "text"
