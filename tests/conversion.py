"""Models of transformers and runs to convert, and their tokenizers."""

import inspect
import json

import jax
import numpy as np

from pretrax import models
from pretrax.cli import convert
from pretrax.corpora.vocabularies import tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.models.hugging_face import parameter_shapes, write_model
from pretrax.models.trees import nested
from pretrax.training.run_configuration import read_fields

SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24)


def random_params(model):
    rng = np.random.default_rng(0)
    shapes = sorted(parameter_shapes(model).items())
    return nested((name, rng.normal(size=shape).astype(np.float32)) for name, shape in shapes)


def llama(rows=128, heads=("vocabulary",), **settings):
    settings = SMALL | dict(num_layers=3, num_kv_heads=2, norm_epsilon=1e-5) | settings
    return models.decoder(rows, heads, **settings)


# How the layers of BERT differ from those of `models.encoder`.
BERT = dict(
    mlp_activations=("gelu_exact",),
    norm="layer",
    norm_place="after",
    norm_epsilon=1e-12,
    biases=True,
    embedding_norm=True,
    positions="learned",
    logits_via_embedding=True,
    vocabulary_layer=True,
    vocabulary_bias=True,
)


def bert(rows=40, heads=("vocabulary", "pair"), **settings):
    """Returns a BERT of `transformers`, by default with all of its pretraining heads."""
    settings = dict(max_positions=64) | settings
    return models.encoder(
        rows, heads, num_layers=2, **(SMALL | dict(head_dim=4)), **BERT, **settings
    )


def written(directory, model, scale=1, **settings):
    """Writes a directory of `transformers` with random weights, and returns our parameters, too."""
    params = jax.tree.map(lambda x: scale * x, random_params(model))
    write_model(str(directory), model.config, params, **settings)
    return str(directory), params


def word_pieces(path):
    """Writes a tokenizer.json like BERT's."""
    import tokenizers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = names + [chr(ord("a") + i) for i in range(26)] + ["##a", "the", "##s", "."]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(names)
    made.save(str(path / "tokenizer.json"))
    names = {f"{n.strip('[]').lower()}_token": n for n in names}
    (path / "tokenizer_config.json").write_text(json.dumps(names))


def trained(tmp_path, **settings):
    path = str(tmp_path / "trained.model")
    train_sentencepiece([inspect.getsource(convert)], path, size=600, **settings)
    return tokenization.sentencepiece_tokenizer(path, extra_ids=0)


def hugging_faces(tmp_path):
    word_pieces(tmp_path)
    return tokenization.hugging_face_tokenizer(str(tmp_path / "tokenizer.json"))


def sentencepiece(tmp_path) -> str:
    return trained(tmp_path).path


def t5_model(rows=600):
    return models.encoder_decoder(rows, **SMALL, num_encoder_layers=1, num_decoder_layers=1)


def bart_model(rows=600):
    """Returns a BART with learned positions."""
    bart = read_fields(["models/bart_tiny.gin"])["model"]
    return bart(rows, max_positions=128, **SMALL | {"emb_dim": 32})
