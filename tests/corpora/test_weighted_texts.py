"""Weights of characters in text files become weights of tokens."""

import functools
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pretrax.corpora import text_files, vocabularies
from pretrax.corpora.vocabularies.tokenization import byte_tokenizer, located
from pretrax.corpora.weighted_texts import weighted_text_of
from pretrax.data.reading import MalformedLine
from tests.refusals import refuses

PROMPT = "Question: what is the color of snow? "
LINES = [
    {"text": f"{PROMPT}White, as number {i} says. ünïcode", "weights": [[0, len(PROMPT), 0]]}
    for i in range(60)
] + [{"text": f"Half of text {i}.", "weights": 0.5} for i in range(30)]
LINES += [{"text": f"Text {i} without weights.", "weights": None} for i in range(30)]


def trained(size, **settings):
    return functools.partial(vocabularies.trained, size=size, **settings)


VOCABULARIES = {
    "bytes": functools.partial(vocabularies.from_file, path="bytes"),
    "bpe": trained(size=520),
    "wordpiece": trained(size=250, model_type="wordpiece"),
}


def corpus_of(folder, lines, vocabulary=VOCABULARIES["bytes"], **settings):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return text_files(
        str(folder / "run"),
        files=str(path),
        vocabulary=vocabulary,
        **{"weights_field": "weights"} | settings,
    )


def first_epoch(corpus):
    stream, documents = corpus.open_shard(0, 1), []
    while stream.epochs < 1:
        documents.append(stream.next_document())
    return documents


@pytest.mark.parametrize("name", VOCABULARIES)
def test_token_weights_follow_their_characters(tmp_path, name):
    corpus = corpus_of(tmp_path, LINES, VOCABULARIES[name])
    assert corpus.columns == ("weights",)
    kinds = {"Question": 0, "Half": 0, "Text": 0}
    for document in first_epoch(corpus):
        text = corpus.codec.decode(document.tokens.tolist()).strip()
        kinds[text.split(maxsplit=1)[0].strip(":")] += 1
        if text.startswith("Question"):
            zeros = int(np.sum(document.weights == 0))
            rest = corpus.codec.decode(document.tokens[zeros:].tolist())
            assert not document.weights[:zeros].any() and (document.weights[zeros:] > 0).all()
            assert rest.strip().startswith("White") and document.weights[zeros + 1 :].min() == 1
        else:
            assert set(document.weights.tolist()) == {0.5 if text.startswith("Half") else 1.0}
    assert min(kinds.values()) > 20


def test_parquet_file_gives_the_same_documents(tmp_path):
    lines = [line for line in LINES if isinstance(line.get("weights"), list)]
    documents = first_epoch(corpus_of(tmp_path, lines))
    ranges = [[list(map(float, x)) for x in line["weights"]] for line in lines]
    table = pyarrow.table({"text": [line["text"] for line in lines], "weights": ranges})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    corpus = text_files(
        str(tmp_path / "other"),
        files=str(tmp_path / "a.parquet"),
        vocabulary=VOCABULARIES["bytes"],
        weights_field="weights",
    )
    for document, other in zip(documents, first_epoch(corpus), strict=True):
        np.testing.assert_array_equal(document.tokens, other.tokens)
        np.testing.assert_array_equal(document.weights, other.weights)


def test_weight_spans_give_the_weight_of_each_character(tmp_path):
    read = weighted_text_of("text", "weights")
    text, weights = read({"text": "acgtACGT", "weights": [[0, 4, 0.1], [6, 8, 2]]})
    np.testing.assert_allclose(weights, [0.1] * 4 + [1] * 2 + [2] * 2)


@pytest.mark.parametrize("text", ["", "a", "naïve </s> text", "▁ <extra_id_0> ▁", "日本 x"])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_located_in_any_text(tmp_path, name, text):
    if name == "bytes":
        tokenizer = byte_tokenizer()
    else:
        texts = (line["text"] for line in LINES)
        source = vocabularies.VocabularySource(texts=lambda: texts)
        tokenizer = VOCABULARIES[name](str(tmp_path), source).tokenizer
    ids, spans = located(tokenizer, text)
    special = {*tokenizer.blocked} - {tokenizer.unknown}
    assert spans.shape == (ids.size, 2) and not set(ids.tolist()) & special
    assert np.all(np.diff(spans[:, 0]) >= 0) and np.all(spans[:, 0] <= spans[:, 1])
    if text:
        assert spans[0, 0] <= 1 and spans[-1, 1] == len(text)


@pytest.mark.parametrize(
    "weights", [[[0, 99, 1]], [[2, 1, 1]], [[0, 1]], [[0, 1, -1]], [1, 2], "high", [[0.5, 1, 1]]]
)
def test_line_with_invalid_weights_is_named(tmp_path, weights):
    lines = [{"text": "fine", "weights": 1}, {"text": "wrong", "weights": weights}]
    with pytest.raises(MalformedLine) as caught:
        corpus_of(tmp_path, lines)
    assert "a.jsonl:2" in str(caught.value) and "weights" in str(caught.value)


def test_line_without_the_weights_field_is_named(tmp_path):
    with pytest.raises(MalformedLine) as caught:
        corpus_of(tmp_path, [LINES[0], {"text": "no weights"}])
    assert "a.jsonl:2" in str(caught.value) and "'weights'" in str(caught.value)


def test_plain_text_files_with_a_weights_setting_are_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    with refuses(ValueError, path, "weights"):
        text_files(
            str(tmp_path / "run"),
            files=str(path),
            vocabulary=VOCABULARIES["bytes"],
            weights_field="weights",
        )
