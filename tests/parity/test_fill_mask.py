"""Filled masks agree with the fill-mask pipeline of `transformers` on small random models."""

import functools
import json

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pretrax.corpora.vocabularies import special_tokens, tokenization
from pretrax.inference import Trained
from pretrax.inference.answering.masks import fill_masks
from tests.parity.berts import CODE, WIDTHS, bert_tokenizer
from tests.parity.models import import_model

TEXTS = [
    "The {} of the parser.",
    "{} is a value",
    "return {} if the {} is not None",
    "add an argument to {}",
]


def roberta_tokenizer():
    """Returns a byte-level tokenizer in which a mask takes the space before it, as in RoBERTa."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CODE.splitlines(), trainer)
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    roles = dict(
        bos="<s>", cls="<s>", pad="<pad>", eos="</s>", sep="</s>", unk="<unk>", mask="<mask>"
    )
    return made, roles


def reference(name, tokenizer, roles):
    ids = {f"{role}_token_id": tokenizer.token_to_id(token) for role, token in roles.items()}
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=size, max_position_embeddings=64, pad_token_id=0, **WIDTHS
        )
        made = transformers.BertForMaskedLM(config)
    else:
        given = {key: ids[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
        config = transformers.RobertaConfig(
            vocab_size=size, max_position_embeddings=66, type_vocab_size=1, **given, **WIDTHS
        )
        made = transformers.RobertaForMaskedLM(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return made.eval().float()


@functools.cache
def pipeline_and_model(name, folder):
    """Returns (their pipeline, our model) for a random model that transformers saved."""
    tokenizer, roles = {"bert": bert_tokenizer, "roberta": roberta_tokenizer}[name]()
    model = reference(name, tokenizer, roles)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": token for role, token in roles.items()}
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    found, params = import_model(folder)
    ours = tokenization.open_tokenizer(f"{folder}/tokenizer.json")
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        ids = special_tokens.published_ids(ours, folder, json.load(file))
    codec = special_tokens.codec(ours, ids)
    return (model, fast), Trained(found.model, params, ids, codec.encode, codec.decode)


def text_probabilities(ids, p):
    first, end = ids.text
    return torch.nn.functional.pad(p[first:end], (first, len(p) - end))


@pytest.mark.sampled
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_top_tokens_match_transformers_logits(name, text, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / f"fill_mask_{name}"
    (model, fast), ours = pipeline_and_model(name, str(folder))
    text = text.format(*[fast.mask_token] * text.count("{}"))
    read = fast(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(read.input_ids).logits[0]
    expected = torch.softmax(logits[read.input_ids[0] == fast.mask_token_id], -1)
    found = fill_masks(ours, [text])[0]
    assert len(found) == len(expected)
    for guesses, p in zip(found, expected):
        p = text_probabilities(ours.ids, p)  # special tokens are never written
        top = torch.topk(p, 5)
        assert [guess.id for guess in guesses] == top.indices.tolist()
        given = torch.tensor([guess.probability for guess in guesses])
        torch.testing.assert_close(given, top.values / p.sum(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_top_tokens_match_fill_mask_pipeline(name, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / f"fill_mask_{name}"
    (model, fast), ours = pipeline_and_model(name, str(folder))
    pipeline = transformers.FillMaskPipeline(model=model, tokenizer=fast)
    ((guesses,),) = fill_masks(ours, ["a [MASK] b"])
    theirs = pipeline(f"a {fast.mask_token} b", top_k=ours.ids.size)
    likeliest = [guess["token"] for guess in theirs if guess["token"] in range(*ours.ids.text)]
    assert [guess.id for guess in guesses] == likeliest[:5]
