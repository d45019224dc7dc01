"""Small BERTs of transformers and their tokenizers."""

import argparse
import inspect

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

CODE = inspect.getsource(argparse)

WIDTHS = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def bert_tokenizer():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    made.train_from_iterator(CODE.splitlines(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), names))
    return made, roles
