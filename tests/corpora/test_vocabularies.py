import argparse
import contextlib
import inspect
import json
import pickle

import pytest
import tokenizers

from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import Vocabulary, factories, special_tokens, tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.corpora.vocabularies.word_training import SPECIALS, train_words
from pretrax.data.token_ids_json import ids_from_json, ids_to_json
from pretrax.objectives import TokenIds, TokenTexts, check_token_ids
from pretrax.training.saved.warm_start import check_same_vocabulary
from tests.refusals import refuses

EXACT_TEXTS = [
    "def f(x):\n    return  x+1\n\n\tif a:\r\n",
    "  leading and trailing  ",
    "\n\n\n",
    "\x00 \u00e9\u6f22\U0001f600",
    "a\u2581b\u2581",  # SentencePiece writes a space as ▁.
    "</s> <pad> <extra_id_0> <0x0A> [MASK]",
    "",
]


def tokenizer_file(path, vocabulary):
    """Writes a tokenizer.json of whole words, and returns its path."""
    model = tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")
    values = json.loads(tokenizers.Tokenizer(model).to_str())
    values["model"]["vocab"] = vocabulary
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize("largest", [2**31, 2**32 - 1, 2**24])
def test_outlying_token_id_is_named(tmp_path, largest):
    words = {"<unk>": 0, "</s>": 1, "a": 2}
    assert tokenization.open_tokenizer(tokenizer_file(tmp_path / "a.json", words)).size == 3
    path = tokenizer_file(tmp_path / "b.json", words | {"<mask>": largest})
    with refuses(ValueError, path, "'<mask>'", largest):
        tokenization.open_tokenizer(path)


def test_ids_of_more_than_32_bits_are_rejected():
    with refuses(ValueError, 2**31):
        check_token_ids(TokenIds(size=2**31, text=(2, 10)))
    ids = TokenIds(size=2**31 - 1, text=(2, 10))
    assert check_token_ids(ids) == ids


def encode(tokenizer, text):
    return tokenizer.encode_batch([text])[0].tolist()


@pytest.mark.parametrize("written", EXACT_TEXTS)
def test_trained_and_byte_vocabularies_round_trip_any_text(tokenizer, written):
    for each in (tokenizer, tokenization.byte_tokenizer()):
        ids = encode(each, written)
        assert each.decode(ids) == written
        first, last = token_ids(each).text
        assert all(first <= i < last for i in ids)


@pytest.mark.slow
def test_unigram_vocabulary_round_trips_code(tmp_path, text):
    path = str(tmp_path / "unigram.model")
    train_sentencepiece([text, inspect.getsource(argparse)], path, size=600, model_type="unigram")
    tokenizer = tokenization.sentencepiece_tokenizer(path, extra_ids=0)
    for each in [text, *EXACT_TEXTS]:
        assert tokenizer.decode(encode(tokenizer, each)) == each


def test_vocabulary_training_is_deterministic_and_leaves_one_file(tmp_path, model, text):
    train_sentencepiece([text], str(tmp_path / "again.model"), size=520)
    assert (tmp_path / "again.model").read_bytes() == open(model, "rb").read()
    assert [p.name for p in tmp_path.iterdir()] == ["again.model"]


@pytest.mark.parametrize(
    ("texts", "settings", "values"),
    [
        ([], {}, ["text"]),
        (["\n \n"], {}, ["text"]),
        (["abc"], {}, [512]),
        (None, {"size": 100_000}, ["vocabularies.trained.size", 100_000]),
        (None, {"model_type": "word"}, ["model_type", "'bpe'", "'unigram'", "'word'"]),
    ],
)
def test_untrainable_sentencepiece_vocabularies_are_rejected(
    tmp_path, text, texts, settings, values
):
    with refuses(ValueError, *values):
        train_sentencepiece([text] if texts is None else texts, str(tmp_path / "v"), **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model_type, size", [("wordpiece", 240), ("word", 60)])
def test_word_vocabularies_are_deterministic_and_match_the_library(
    tmp_path, text, model_type, size
):
    """The library alone would number pieces in a different order each time."""
    source = vocabularies.VocabularySource(lambda: [text])
    files = []
    for name in ("first", "second"):
        run_dir = str(tmp_path / name)
        made = vocabularies.trained(run_dir, source, size=size, model_type=model_type)
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == [
            *("tokenizer.json", "vocabulary.json")
        ]
        files.append((tmp_path / name / "tokenizer.json").read_bytes())
    assert files[0] == files[1]
    tokenizer, ids, _ = made
    assert tokenizer.size == size and bool(tokenizer.words) == (model_type == "word")
    assert (ids.pad, tokenizer.unknown, ids.cls, ids.sep, ids.mask) == (0, 1, 2, 3, 4)
    assert ids.text == (len(SPECIALS), size) and min(*ids.sentinels, ids.eos) >= size
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "first" / "tokenizer.json"))
    for each in (text, "The mean of values, 日本 and [their] sum: unheard\u0301-of!", ""):
        assert encode(tokenizer, each) == theirs.encode(each, add_special_tokens=False).ids
    assert tokenizer.decode(encode(tokenizer, "The   mean of some\nvalues.")) == (
        "The mean of some values."
    )
    assert made.codec.decode(made.codec.encode("The[MASK] of<extra_id_0>")) == (
        "The[MASK] of<extra_id_0>"
    )


def test_unknown_word_model_type_is_rejected(tmp_path):
    with refuses(ValueError, "model_type", "wordpiece", "word", "words"):
        train_words(["abc"], str(tmp_path / "v.json"), size=7, model_type="words")


def test_word_pieces_begin_and_continue_words(tmp_path, text):
    train_words([text], str(tmp_path / "v.json"), size=220, model_type="wordpiece")
    tokenizer = tokenization.hugging_face_tokenizer(str(tmp_path / "v.json"))
    tokens = encode(tokenizer, "The numbers divided, undreamt.")
    starts = token_ids(tokenizer).flags("word_starts")[tokens]
    surfaces = [tokenizer.surface(i) for i in tokens]
    words = "".join(("/" if start else "") + s.strip() for start, s in zip(starts, surfaces))
    assert words == "/The/numbers/divided/,/undreamt/." and len(tokens) > 6
    assert tokenizer.unknown not in encode(tokenizer, "~Zq @9")  # All ASCII characters are known.
    assert encode(tokenizer, "sum 日 Größe") == [*encode(tokenizer, "sum"), 1, 1]


def test_most_frequent_words_are_in_the_vocabulary(tmp_path):
    texts = ["b b b a a c c d", "a cat"]
    train_words(texts, str(tmp_path / "v.json"), size=8, model_type="word")
    tokenizer = tokenization.hugging_face_tokenizer(str(tmp_path / "v.json"))
    # Ties are ordered by spelling.
    assert [tokenizer.surface(i) for i in range(5, 8)] == [" a", " b", " c"]
    assert tokenizer.decode(encode(tokenizer, "a cat, b!")) == "a [UNK] [UNK] b [UNK]"


@pytest.mark.parametrize(
    ("texts", "model_type", "size", "values"),
    [
        (["\n"], "wordpiece", 300, ["text"]),
        (["abc"], "wordpiece", 50, ["vocabularies.trained.size", 50, 161]),
        (["abc abc"], "wordpiece", 1000, ["vocabularies.trained.size", 1000, 163]),
        (["abc"], "word", 5, ["vocabularies.trained.size", 5, 6]),
        (["abc de"], "word", 8, ["vocabularies.trained.size", 8, 7]),
        ([], "bpe", 511, ["vocabularies.trained.size=511", 512]),
        (["abc"], "words", 8, ["'bpe'", "'unigram'", "'wordpiece'", "'word'", "'words'"]),
    ],
)
def test_untrainable_word_vocabularies_are_rejected(tmp_path, texts, model_type, size, values):
    source = vocabularies.VocabularySource(lambda: texts)
    with refuses(ValueError, *values):
        vocabularies.trained(str(tmp_path), source, size=size, model_type=model_type)
    assert not list(tmp_path.iterdir())


def test_t5_special_ids_match_the_published_layout(t5_like):
    tokenizer = tokenization.open_tokenizer(t5_like)
    pieces = tokenizer.size - 100
    ids = token_ids(tokenizer, sentinels=100, specials=())
    assert ids.sentinels == tuple(range(pieces + 99, pieces - 1, -1))  # 32099 … 32000
    assert ids.text == (2, pieces)  # The id of unknown characters is text.
    assert (ids.pad, ids.eos, ids.bos, ids.size) == (0, 1, 0, pieces + 100)
    assert encode(tokenizer, "☃")[-1] == 2 == tokenizer.unknown


def test_missing_sentinels_are_appended(t5_like):
    tokenizer = tokenization.open_tokenizer(t5_like)
    ids = token_ids(tokenizer, sentinels=128, specials=())
    assert ids.sentinels[:100] == token_ids(tokenizer, sentinels=100, specials=()).sentinels
    assert ids.sentinels[100:] == tuple(range(tokenizer.size, tokenizer.size + 28))
    assert ids.size == tokenizer.size + 28


def test_special_ids_are_appended_to_a_tokenizer_without_any(tokenizer):
    ids = token_ids(tokenizer, sentinels=3, specials=("R", "mask", "fim"))
    assert ids._replace(word_starts=b"", sentence_ends=b"", digits=()) == TokenIds(
        size=520 + 8,
        text=(3, 520),  # Unknown characters become bytes.
        sentinels=(522, 521, 520),
        modes=(("R", 523),),
        mask=524,
        fim=(525, 526, 527),
    )


def test_special_ids_of_hugging_face_tokenizers_are_found(hugging_face):
    bert = tokenization.open_tokenizer(hugging_face["wordpiece"])
    ids = token_ids(bert, sentinels=2)
    assert (ids.pad, ids.cls, ids.sep, ids.mask) == (0, 2, 3, 4)
    assert ids.text == (5, bert.size)
    assert ids.eos >= bert.size and min(ids.sentinels) >= bert.size
    gpt = token_ids(tokenization.open_tokenizer(hugging_face["bpe"]), sentinels=2)
    assert gpt.eos == 0 and gpt.text[0] == 1 and gpt.pad >= gpt.text[1]
    unigram = token_ids(tokenization.open_tokenizer(hugging_face["unigram"]), sentinels=2)
    assert (unigram.pad, unigram.eos, unigram.mask, unigram.text[0]) == (0, 1, 3, 4)
    kinds = ("wordpiece", "bpe", "unigram")
    opened = [tokenization.open_tokenizer(hugging_face[kind]) for kind in kinds]
    assert [one.unknown for one in opened] == [1, None, 2]


def test_special_token_names_in_documents_are_encoded_as_text(hugging_face, t5_like, tokenizer):
    for each in (
        tokenizer,
        tokenization.open_tokenizer(t5_like),
        *map(tokenization.open_tokenizer, hugging_face.values()),
    ):
        ids = token_ids(each)
        names = special_tokens.special_names(each, ids)
        assert not set(encode(each, "a " + " ".join(names.values()))) & set(names)


def test_user_defined_symbols_in_documents_are_encoded_as_text(defines_names):
    """SentencePiece alone would produce their ids for any text."""
    tokenizer = tokenization.sentencepiece_tokenizer(defines_names)
    special = set(tokenizer.named.values())
    names = list(tokenizer.named)
    assert {"<extra_id_0>", "<mask>", "</s>"} <= set(names)
    texts = [f"a {name} the mean" for name in names] + ["".join(names), "a＜extra_id_0＞b"]
    for written, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.size and special.isdisjoint(ids.tolist()), written
    apart = encode(tokenizer, "a <") + encode(tokenizer, "mask> the")
    assert encode(tokenizer, "a <mask> the") == apart


def test_codec_writes_and_reads_special_tokens_by_name(tokenizer, hugging_face):
    ids = token_ids(tokenizer)
    codec = special_tokens.codec(tokenizer, ids)
    text = "def <extra_id_0>\n  x<extra_id_127></s>[R]<mask>"
    tokens = codec.encode(text)
    special = [ids.sentinels[0], ids.sentinels[127], ids.eos, ids.mode("R"), ids.mask]
    assert [i for i in tokens if i >= 520 or i == 1] == special
    assert codec.decode(tokens) == text
    bert = tokenization.open_tokenizer(hugging_face["wordpiece"])
    codec = special_tokens.codec(bert, token_ids(bert))
    assert codec.decode(codec.encode("[CLS]the[MASK][SEP]")) == "[CLS] the[MASK][SEP]"


def test_scattered_special_ids_are_rejected(tokenizer):
    with refuses(ValueError, tokenizer.size):
        token_ids(tokenizer._replace(blocked=(100, 200, 300, 400)))


def test_shared_id_of_two_special_tokens_is_rejected(tokenizer):
    with refuses(ValueError, "mask", 7):
        token_ids(tokenizer._replace(named={"<mask>": 7, "[CLS]": 7}))


def test_saved_vocabulary_is_loaded_unchanged(tmp_path, tokenizer, t5_like, hugging_face):
    byte = tokenization.byte_tokenizer()
    rest = [t5_like, *hugging_face.values()]
    for i, each in enumerate([tokenizer, byte, *map(tokenization.open_tokenizer, rest)]):
        ids = token_ids(each, sentinels=5)
        vocabularies.save_vocabulary(str(tmp_path / str(i)), Vocabulary(each, ids, {"a": 1}))
        kept = vocabularies.load_vocabulary(str(tmp_path / str(i)))
        assert (kept.ids, kept.about) == (ids, {"a": 1})
        assert kept.tokenizer.named == each.named
        assert encode(kept.tokenizer, "the mean") == encode(each, "the mean")
        assert kept.codec.encode("<extra_id_0>") == [ids.sentinels[0]]


@pytest.mark.parametrize("name", ["missing.model", "missing.json"])
def test_missing_vocabulary_is_named(name):
    with refuses(FileNotFoundError, "bytes"):
        tokenization.open_tokenizer(name)


def test_vocabulary_of_a_run_in_a_bucket_is_rejected(tmp_path):
    source = vocabularies.VocabularySource()
    with refuses(ValueError, "vocabularies.from_run.run='gs://bucket/run'", "vocabulary.json"):
        vocabularies.from_run(str(tmp_path), source, run="gs://bucket/run")


@pytest.mark.parametrize("name", ["bad.model", "bad.json"])
def test_file_that_is_not_a_vocabulary_is_rejected(tmp_path, name):
    (tmp_path / name).write_text("hello")
    with refuses(ValueError, name):
        tokenization.open_tokenizer(str(tmp_path / name))
    with refuses(FileNotFoundError, "vocabulary.json", "--tokenizer=FILE"):
        vocabularies.load_vocabulary(str(tmp_path))


@pytest.mark.parametrize(
    "change, values",
    [
        (lambda v: v.update(file="/etc/passwd"), ["'sentencepiece'", "'/etc/passwd'"]),
        (lambda v: v.update(file="../other/vocabulary.model"), ["'../other/vocabulary.model'"]),
        (lambda v: v.update(kind=["bytes"]), ["'list'"]),
        (lambda v: v.update(extra_ids=10**12), ["extra_ids=1000000000000", 0, 65536]),
        (
            lambda v: v["ids"].update(size=10**12, word_starts="", sentence_ends=""),
            [10**12],
        ),
        (lambda v: v["ids"].update(text=[3, 10**12]), [3, 10**12]),
        (lambda v: v["ids"].update(sentinels="abc"), ["'<='"]),
        (lambda v: v.pop("ids"), ["'ids'"]),
    ],
)
def test_damaged_run_vocabulary_is_named(tmp_path, tokenizer, change, values):
    vocabulary = Vocabulary(tokenizer, token_ids(tokenizer, sentinels=5), {})
    vocabularies.save_vocabulary(str(tmp_path), vocabulary)
    file = tmp_path / "vocabulary.json"
    description = json.loads(file.read_text())
    change(description)
    file.write_text(json.dumps(description))
    with contextlib.suppress(TypeError):  # Values of the wrong type cannot be replaced.
        factories.renew_checksums(str(tmp_path))
    with refuses(ValueError, "vocabulary.json", *values):
        vocabularies.load_vocabulary(str(tmp_path))
    file.write_text(json.dumps(values)[:40])
    with refuses(ValueError, "vocabulary.json"):
        vocabularies.load_vocabulary(str(tmp_path))


def test_checksum_mismatch_names_the_file(tmp_path, tokenizer):
    vocabulary = Vocabulary(tokenizer, token_ids(tokenizer, sentinels=5), {})
    vocabularies.save_vocabulary(str(tmp_path), vocabulary)
    for name in ("vocabulary.model", "vocabulary.json"):
        whole = (tmp_path / name).read_bytes()
        for at in (whole.rindex(b"vocabulary.") if name.endswith("json") else 20, 30):
            content = bytearray(whole)
            content[at] ^= 1
            (tmp_path / name).write_bytes(content)
            with refuses(ValueError, name):
                vocabularies.load_vocabulary(str(tmp_path))
        (tmp_path / name).write_bytes(whole)


def test_word_starts_and_sentence_ends_are_found_for_every_vocabulary(hugging_face, model, t5_like):
    """Other implementations of whole-word masking work for one tokenizer only."""
    text = "The mean of some values is their sum. some values return"
    for name in ("bytes", model, t5_like, *hugging_face.values()):
        tokenizer = tokenization.open_tokenizer(name)
        ids = token_ids(tokenizer)
        (tokens,) = tokenizer.encode_batch([text])
        starts, ends = ids.flags("word_starts")[tokens], ids.flags("sentence_ends")[tokens]
        starts[0] = False  # The start of a document starts a word for every id.
        # For WordPiece, the full stop is a separate word.
        assert starts.sum() == text.count(" ") + (name == hugging_face["wordpiece"]), name
        assert ends.sum() == 1, name
        assert not ids.flags("word_starts")[list(ids.sentinels)].any()


def test_ids_give_the_text_of_each_token(hugging_face, model, tmp_path):
    for name in ("bytes", model, *hugging_face.values()):
        tokenizer = tokenization.open_tokenizer(name)
        ids = token_ids(tokenizer)
        texts = ids.texts()
        assert len(texts) == ids.size and not any(texts[i] for i in ids.sentinels)
        assert all(texts[i].strip(" #") == str(value) for i, value in ids.digits)
        assert {value for _, value in ids.digits} == set(range(10)), name
        vocabularies.save_vocabulary(str(tmp_path), vocabularies.Vocabulary(tokenizer, ids, {}))
        assert vocabularies.load_vocabulary(str(tmp_path)).ids.texts() == texts
    assert pickle.loads(pickle.dumps(ids)).texts() == texts
    bare = ids_from_json(ids_to_json(ids))
    assert bare == ids and hash(bare) == hash(ids)
    with refuses(ValueError, "texts=TokenTexts"):
        bare.texts()


def test_ids_give_the_bytes_of_each_token(hugging_face, model, t5_like, tmp_path):
    """Parts of a character have different bytes, but the same text."""
    text = "def voil\u00e0(\u6f22\u5b57): \u2005 return"
    for name in ("bytes", model, hugging_face["bpe"]):
        tokenizer = tokenization.open_tokenizer(name)
        ids = token_ids(tokenizer)
        pieces = ids.token_bytes()
        tokens = encode(tokenizer, text)
        assert b"".join(pieces[i] for i in tokens) == text.encode(), name
        assert any(len(pieces[i]) == 1 and pieces[i] > b"\x7f" for i in tokens), name
        assert ids.texts() == [piece.decode("utf-8", "replace") for piece in pieces]
        assert len(pieces) == ids.size and not any(pieces[i] for i in ids.sentinels)
        vocabularies.save_vocabulary(str(tmp_path), vocabularies.Vocabulary(tokenizer, ids, {}))
        assert vocabularies.load_vocabulary(str(tmp_path)).ids.token_bytes() == pieces
        assert pickle.loads(pickle.dumps(ids)).token_bytes() == pieces
    for name in (t5_like, hugging_face["wordpiece"], hugging_face["unigram"]):
        tokenizer = tokenization.open_tokenizer(name)
        pieces = token_ids(tokenizer).token_bytes()
        tokens = encode(tokenizer, "the mean of some values")
        assert b"".join(pieces[i] for i in tokens) == b" the mean of some values", name


def test_unknown_id_has_no_bytes(t5_like, tmp_path):
    tokenizer = tokenization.open_tokenizer(t5_like)
    assert tokenizer.surface(tokenizer.unknown) == "<unk>"
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "<": 3, "a": 4, "b": 5}
    for each in (
        tokenizer,
        tokenization.open_tokenizer(tokenizer_file(tmp_path / "v.json", words)),
    ):
        ids = token_ids(each)
        assert ids.text[0] <= each.unknown < ids.text[1]
        assert ids.token_bytes()[each.unknown] == b""


def test_byte_level_pieces_decode_like_the_library(hugging_face):
    tokenizer = tokenization.open_tokenizer(hugging_face["bpe"])
    library = tokenizers.Tokenizer.from_file(hugging_face["bpe"])
    single = set()
    for i in range(tokenizer.size):
        if i not in tokenizer.blocked:
            assert tokenizer.surface(i) == library.decode([i])
            single |= {tokenizer.piece(i)} if len(tokenizer.piece(i)) == 1 else set()
    assert single == {bytes([byte]) for byte in range(256)}


def byte_level(decoder):
    """Returns a byte-level tokenizer whose vocabulary is " é", "re" and single bytes."""
    from tokenizers import models, pre_tokenizers

    vocabulary = {"<pad>": 0, "</s>": 1}
    for piece in (*sorted(pre_tokenizers.ByteLevel.alphabet()), "re", "Ã©", "ĠÃ©"):
        vocabulary[piece] = len(vocabulary)
    merges = [("r", "e"), ("Ã", "©"), ("Ġ", "Ã©")]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    split = pre_tokenizers.Split(tokenizers.Regex(r"\d"), "isolated")
    read = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, read])
    made.decoder = decoder
    return made


def test_byte_level_pieces_are_recognized_by_any_decoder():
    from tokenizers import decoders

    text = "re é\n"
    for decoder in (
        decoders.ByteLevel(),
        decoders.Sequence([decoders.ByteLevel()]),
        decoders.Sequence([decoders.Fuse(), decoders.Sequence([decoders.ByteLevel()])]),
        None,
    ):
        tokenizer = tokenization.tokenizer_of(byte_level(decoder))
        ids = token_ids(tokenizer)
        pieces = ids.token_bytes()
        tokens = encode(tokenizer, text)
        assert [pieces[i] for i in tokens] == [b"re", " é".encode(), b"\n"]
        assert tokenizer.decode(tokens) == text
        assert ids.flags("word_starts")[tokens].tolist() == [False, True, True]
        assert not tokenizer.spaced


@pytest.mark.parametrize("kind", ["WordPiece", "BPE"])
@pytest.mark.parametrize("prefix", ["##", "@@"])
def test_continuation_prefix_is_read(kind, prefix):
    vocabulary = {"<pad>": 0, "</s>": 1, "[UNK]": 2, "r": 3, f"{prefix}e": 4, "re": 5, "e": 6}
    given = dict(unk_token="[UNK]", continuing_subword_prefix=prefix)
    if kind == "BPE":
        given["merges"] = [("r", f"{prefix}e")]
    made = tokenizers.Tokenizer(getattr(tokenizers.models, kind)(vocabulary, **given))
    ids = token_ids(tokenization.tokenizer_of(made))
    assert ids.token_bytes()[3:7] == [b" r", b"e", b" re", b" e"]
    assert ids.flags("word_starts")[3:7].tolist() == [True, False, True, True]


@pytest.mark.parametrize("in_bytes", [False, True])
def test_end_of_word_suffix_is_read(in_bytes):
    """In CLIP, for example, the previous piece determines whether a piece starts a word."""
    pieces = ["<pad>", "</s>", "r", "Ã©" if in_bytes else "é", "r</w>", ".</w>", "7</w>"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: i for i, piece in enumerate(pieces)}, [], end_of_word_suffix="</w>"
        )
    )
    if in_bytes:
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = token_ids(tokenization.tokenizer_of(made))
    assert ids.token_bytes()[2:7] == [b"r", "é".encode(), b"r ", b". ", b"7 "]
    assert ids.digits == ((6, 7),)
    assert ids.flags("sentence_ends")[2:7].tolist() == [False, False, False, True, False]
    with refuses(ValueError, "word_starts"):
        ids.flags("word_starts")


def test_sentencepiece_with_trailing_spaces_has_no_word_starts(tmp_path, text):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text.splitlines()),
        model_prefix=str(tmp_path / "v"),
        vocab_size=80,
        treat_whitespace_as_suffix=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    ids = token_ids(tokenization.open_tokenizer(str(tmp_path / "v.model")))
    assert any(piece.endswith(b" ") for piece in ids.token_bytes())
    with refuses(ValueError, "word_starts"):
        ids.flags("word_starts")


def test_metaspace_replacement_character_is_read():
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({"<pad>": 0, "</s>": 1, "a": 2, "_": 3, "_a": 4}, [("_", "a")])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement="_")
    assert token_ids(tokenization.tokenizer_of(made)).token_bytes()[2:5] == [b"a", b" ", b" a"]


def test_token_texts_accept_text_and_bytes():
    texts = TokenTexts(lambda: ["", "é", b"\xc3"])
    assert texts() == ["", "é", "\ufffd"]
    assert texts.as_bytes() == [b"", b"\xc3\xa9", b"\xc3"]


def test_partial_characters_start_no_word(hugging_face, model):
    """The second byte of "à", 0xA0, is a space in Latin-1, and 0x85 is a line break."""
    text = "voilà déjà 漢字 là\u0105 \u2005"
    assert {0xA0, 0x85} <= set(text.encode())
    for name in ("bytes", model, hugging_face["bpe"]):
        tokenizer = tokenization.open_tokenizer(name)
        tokens = encode(tokenizer, text)
        ids = token_ids(tokenizer)
        assert tokenizer.decode(tokens) == text
        assert ids.flags("word_starts")[tokens].sum() == text.count(" "), name
        assert not ids.flags("sentence_ends")[tokens].any(), name


@pytest.mark.parametrize(
    ("surface", "starts", "ends"),
    [
        (" the", True, False),
        ("the", False, False),
        ("\n\n    ", True, True),
        (".", False, True),
        (' (yes!")', True, True),  # Closing punctuation belongs to the sentence.
        (".\r\n", False, True),
        ("。」", False, True),
        (")", False, False),
        (" ", True, False),
        ("", False, False),
        ("\ufffd", False, False),
    ],
)
def test_word_starts_and_sentence_ends_follow_the_surface(tokenizer, surface, starts, ends):
    ids = token_ids(tokenizer._replace(piece=lambda i: surface.encode()))
    first, last = ids.text
    assert set(ids.flags("word_starts")[first:last]) == {starts}
    assert set(ids.flags("sentence_ends")[first:last]) == {ends}
    for name in ("word_starts", "sentence_ends"):
        assert not ids.flags(name)[:first].any() and not ids.flags(name)[last:].any()


@pytest.mark.parametrize("name", ["vocabulary.model", "tokenizer.json", "vocabulary.json"])
def test_changed_vocabulary_file_is_named(tmp_path, t5_like, hugging_face, name):
    """Pieces or special tokens have other names of the same length."""
    path = t5_like if name == "vocabulary.model" else hugging_face["bpe"]
    each = tokenization.open_tokenizer(path)
    kept = Vocabulary(each, token_ids(each, sentinels=5), {"a": 1})
    vocabularies.save_vocabulary(str(tmp_path), kept)
    file = tmp_path / name
    renamed = {
        "vocabulary.model": (b"<unk>", b"<unq>"),
        "tokenizer.json": (b"|endoftext|", b"|endoftexx|"),
    }
    old, new = renamed.get(name, (b"extra_id_0", b"extra_id_9"))
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))
    with refuses(ValueError, name, "checksum"):
        vocabularies.load_vocabulary(str(tmp_path))


def test_run_resumes_only_with_the_same_vocabulary(tmp_path, tokenizer, t5_like):
    def keep(name, kept, **settings):
        ids = token_ids(kept, **settings)
        vocabularies.save_vocabulary(str(tmp_path / name), Vocabulary(kept, ids, {"of": name}))
        return str(tmp_path / name)

    source = keep("source", tokenizer, sentinels=5)
    check_same_vocabulary(source, keep("same", tokenizer, sentinels=5))
    check_same_vocabulary(source, str(tmp_path))  # It raises no error.
    for other in (tokenization.byte_tokenizer(), tokenization.sentencepiece_tokenizer(t5_like)):
        with refuses(ValueError, "tokenizers"):
            check_same_vocabulary(source, keep("other", other, sentinels=5))
    with refuses(ValueError, "<extra_id_0>"):
        check_same_vocabulary(source, keep("fewer", tokenizer, sentinels=4))
