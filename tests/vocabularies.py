"""Fixtures with small vocabularies for the tests of `corpora` and `tasks`."""

import pytest

from pretrax.corpora.vocabularies import tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece

CODE = """def mean(values):
    total = 0.0
    for value in values:
        total += value
\tif not values: return None  # a tab, and two  spaces
    return total / len(values)

The mean of some values is their sum divided by their number.\r
class Reader: pass
"""


@pytest.fixture(scope="session")
def text() -> str:
    return "".join(
        CODE.replace("mean", f"mean_{i}").replace("class", f"class {i}") for i in range(50)
    )


@pytest.fixture(scope="session")
def model(tmp_path_factory, text) -> str:
    """A SentencePiece model that is trained here."""
    path = str(tmp_path_factory.mktemp("vocabulary") / "small.model")
    train_sentencepiece([text], path, size=520)
    return path


@pytest.fixture(scope="session")
def t5_like(tmp_path_factory, text) -> str:
    """A SentencePiece model like T5's: unigram, without bytes, with normalized white space."""
    import sentencepiece

    path = tmp_path_factory.mktemp("t5") / "t5.model"
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(text.splitlines()),
            model_writer=file,
            vocab_size=80,
            model_type="unigram",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    return str(path)


@pytest.fixture(scope="session")
def defines_names(tmp_path_factory, text) -> str:
    """A SentencePiece model that defines special tokens by name, like mT5's."""
    import sentencepiece

    path = tmp_path_factory.mktemp("defines_names") / "own"
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text.splitlines()),
        model_prefix=str(path),
        vocab_size=200,
        user_defined_symbols=["<extra_id_1>", "<extra_id_0>", "<mask>"],
        pad_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return f"{path}.model"


@pytest.fixture(scope="session")
def tokenizer(model) -> tokenization.Tokenizer:
    return tokenization.sentencepiece_tokenizer(model, extra_ids=0)


@pytest.fixture(scope="session")
def hugging_face(tmp_path_factory, text) -> dict[str, str]:
    """A tokenizer.json of each type, with special tokens in their usual places."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("hugging_face")
    kinds = {
        "bpe": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
            trainers.BpeTrainer(
                vocab_size=400,
                special_tokens=["<|endoftext|>"],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            ),
        ),
        "wordpiece": (
            models.WordPiece(unk_token="[UNK]"),
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
            trainers.WordPieceTrainer(
                vocab_size=200,
                special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                show_progress=False,
            ),
        ),
        "unigram": (
            models.Unigram(),
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
            trainers.UnigramTrainer(
                vocab_size=200,
                special_tokens=["<pad>", "</s>", "<unk>", "<mask>"],
                unk_token="<unk>",
                show_progress=False,
            ),
        ),
    }
    paths = {}
    for kind, (model, before, after, trainer) in kinds.items():
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer, tokenizer.decoder = before, after
        tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
        paths[kind] = str(folder / f"{kind}.json")
        tokenizer.save(paths[kind])
    return paths
