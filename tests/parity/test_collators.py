"""Batches for `transformers`: its loss of them equals ours, and its Trainer accepts them."""

import functools
import inspect
import os
import pickle
import subprocess
import sys

import jax
import pytest
import torch
import transformers

from pretrax import objectives
from pretrax.corpora.vocabularies import Vocabulary, tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.corpora.vocabularies.special_tokens import encode_texts, token_ids, transformers_ids
from pretrax.corpora.vocabularies.tokenizer_json import write_tokenizer
from pretrax.data import collators
from pretrax.data.collators import Collator
from pretrax.objectives.contract import build
from pretrax.objectives.losses import token_loss
from tests.objectives.registry import CASES, IDS
from tests.parity.models import import_model
from tests.refusals import refuses

torch.set_num_threads(1)

VOCAB = 420
TEXTS = ["a bird in the hand. is worth two.", "a stitch in time. saves nine.", "no.", "to. be."]
BERT = transformers.BertConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
GPT2 = transformers.GPT2Config(
    vocab_size=VOCAB,
    n_embd=16,
    n_layer=1,
    n_head=2,
    n_positions=64,
    bos_token_id=0,
    eos_token_id=1,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
)
T5 = transformers.T5Config(
    vocab_size=VOCAB,
    d_model=16,
    d_kv=8,
    d_ff=16,
    num_layers=1,
    num_heads=2,
    dropout_rate=0.0,
    decoder_start_token_id=0,
)


def bert(ids):
    unframed = functools.partial(objectives.masked_lm, framed=False)
    return objectives.then(ids, objectives.next_sentence_prediction, unframed)


ENCODER, DECODER, BOTH = {"encoder": 48}, {"decoder": 48}, {"encoder": 48, "decoder": 48}
MODELS = {
    "masked_lm": (objectives.masked_lm, ENCODER, transformers.BertForMaskedLM, BERT),
    "bert": (bert, ENCODER, transformers.BertForPreTraining, BERT),
    "causal_lm": (objectives.causal_lm, DECODER, transformers.GPT2LMHeadModel, GPT2),
    "middle": (objectives.fill_in_the_middle, DECODER, transformers.GPT2LMHeadModel, GPT2),
    "spans": (objectives.span_corruption, BOTH, transformers.T5ForConditionalGeneration, T5),
    "ul2": (objectives.ul2, BOTH, transformers.T5ForConditionalGeneration, T5),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    ours = tokenization.byte_tokenizer()
    write_tokenizer(folder, Vocabulary(ours, token_ids(ours), {}))
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def collator(tokenizer):
    """Returns name -> collator."""

    @functools.cache
    def collator_of(name):
        builder, lengths, _, config = MODELS[name]
        return Collator(builder, transformers_ids(tokenizer, config), lengths, seed=3)

    return collator_of


@pytest.fixture(scope="module")
def examples(tokenizer):
    return [dict(tokenizer(text)) for text in TEXTS]


def transformers_model(name):
    _, _, model, config = MODELS[name]
    torch.manual_seed(0)
    return model(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loss_matches_objective(name, collator, examples, tmp_path):
    theirs, ours = transformers_model(name), collator(name)
    with torch.no_grad():
        loss = float(theirs(**ours(examples)).loss)
    theirs.save_pretrained(tmp_path)
    found, params = import_model(tmp_path)
    batch = ours._arranged(
        ours._rows([ours._text(example, row) for row, example in enumerate(examples)])
    )
    objective = build(MODELS[name][0], ours._ids)

    @jax.jit
    def total(params, batch):
        terms = objective.loss(batch).scored(found.model.apply(params, batch)).values()
        return sum(t.scale * t.sums.sum() / t.weights.sum() for t in terms if t.scale is not None)

    assert 0 < loss == pytest.approx(float(total(params, batch)), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "causal_lm", "spans"])  # one of each layout
def test_trainer_reduces_loss(name, collator, examples, tmp_path):
    pytest.importorskip("accelerate", reason="the extra `parity` is not installed")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=2,
        learning_rate=0.02,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        transformers_model(name),
        arguments,
        data_collator=collator(name),
        train_dataset=examples * 6,
        eval_dataset=examples,
    )
    before, repeated = (trainer.evaluate()["eval_loss"] for _ in range(2))
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1 and before == repeated


def test_mlm_labels_restore_masked_text(collator, examples, tokenizer):
    batch = collator("masked_lm")(examples)
    counts = batch["labels"] != -100
    restored = torch.where(counts, batch["labels"], batch["input_ids"])
    texts = tokenizer.batch_decode(restored, skip_special_tokens=True)
    assert texts == TEXTS
    # max(1, round(15% of the text with its end)) of each row
    assert counts.sum(1).tolist() == [max(1, round(0.15 * (len(text) + 1))) for text in TEXTS]
    assert (batch["attention_mask"].sum(1) == torch.tensor([len(t) + 3 for t in TEXTS])).all()


def test_causal_labels_cover_text_after_bos(collator, examples):
    batch = collator("causal_lm")(examples)
    ids, labels, live = (batch[name] for name in ("input_ids", "labels", "attention_mask"))
    assert (ids[:, 0] == 0).all() and (labels[:, 0] == -100).all()
    assert (labels[:, 1:] == torch.where(live[:, 1:] > 0, ids[:, 1:], -100)).all()
    # the end of each text
    assert [row[n - 1].item() for row, n in zip(ids, live.sum(1))] == [1] * 4


@pytest.mark.slow
def test_sentence_pairs_have_token_types_and_labels(tokenizer, examples):
    ids = transformers_ids(tokenizer, BERT)
    ours = Collator(objectives.next_sentence_prediction, ids, ENCODER)
    batch = ours(examples * 4)
    second = batch["token_type_ids"] == 1
    assert set(batch["labels"].tolist()) >= {0, 1} and second.any(1).all()
    row = batch["input_ids"][0]
    between = (row == tokenizer.sep_token_id).nonzero()[0].item()
    assert second[0].nonzero()[0].item() == between + 1


def test_concatenate_packs_texts_end_to_end(tokenizer, examples):
    ids = transformers_ids(tokenizer, GPT2)
    ours = Collator(objectives.causal_lm, ids, {"decoder": 24}, packing="concatenate")
    batch = ours(examples)
    assert batch["input_ids"].shape[1] == 24
    live = batch["attention_mask"][:, 1:] > 0
    written = tokenizer.decode(batch["input_ids"][:, 1:][live])
    assert written == "".join(text + "</s>" for text in TEXTS)


@pytest.mark.slow
def test_noise_depends_on_seed_and_batch(collator, examples):
    ours = collator("masked_lm")
    unpickled = pickle.loads(pickle.dumps(ours))  # as in a worker process
    assert (ours(examples)["labels"] == unpickled(examples)["labels"]).all()
    other_seed = Collator(objectives.masked_lm, ours._ids, ENCODER, seed=4)
    assert not torch.equal(ours(examples)["labels"], other_seed(examples)["labels"])
    reversed_batch = ours(examples[::-1])["labels"].flip(0)
    assert not torch.equal(ours(examples)["labels"], reversed_batch)


WORKERS = """
import sys, torch
from pretrax import objectives
from pretrax.data.collators import Collator
ids = objectives.TokenIds(size=64, text=(3, 50), mask=50, cls=51, sep=52)
collator = Collator(objectives.masked_lm, ids, {"encoder": 16})
texts = [[3 + i + j for j in range(12)] for i in range(8)]
loader = torch.utils.data.DataLoader(
    texts, 2, collate_fn=collator, num_workers=int(sys.argv[1]),
    multiprocessing_context="fork" if sys.argv[1] != "0" else None,
)
print([batch["input_ids"].tolist() for batch in loader])
"""


@pytest.mark.slow
def test_worker_processes_draw_the_same_noise():
    def printed(workers):
        finished = subprocess.run(
            [sys.executable, "-c", WORKERS, str(workers)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    assert printed(2) == printed(0) != ""


def test_fork_after_jax_raises(collator, examples, monkeypatch):
    collate = collator("masked_lm")
    collate(examples)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with refuses(RuntimeError, "forkserver"):
        collate(examples)


REJECTED = """
    adaptive_masked_lm annealed_multi_token_prediction any_subset_lm belief_state
    blank_infilling block_diffusion causal_diffusion complementary_diffusion contrastive
    contrastive_pairs dialogue distilled_lm embedding_diffusion flexible_masked_diffusion
    frequency_informed_diffusion future_summary hybrid_diffusion insertion_lm llm_jepa
    masked_diffusion masked_input_regularization masked_permuted_lm mass mixed_diffusion
    multi_token_prediction mutor next_implicit_token next_latent number_token_loss
    permutation_lm phases prefix_token_prediction replaced_token_detection retromae
    sequence_classification sequence_regression shifted_diffusion shuffled_lm superposed_lm
    text_to_text tidar token_classification token_editing token_order_prediction
    uniform_diffusion unrolled_denoising
""".split()


def test_set_of_rejected_objectives():
    rejected = set()
    for case in CASES.values():
        try:
            collators._layout_of(case.objective)
        except ValueError:
            rejected.add(case.builder)
    assert sorted(rejected) == REJECTED and len({case.builder for case in CASES.values()}) > 40


def test_unsupported_objectives_and_packing_raise():
    for builder, values in (
        (objectives.multi_token_prediction, ["`objectives.corruptor`", "ahead_2"]),
        (objectives.masked_diffusion, ["`objectives.corruptor`"]),
        (objectives.masked_permuted_lm, ["positions", "attention"]),
        (objectives.adaptive_masked_lm, ["masked_lm"]),
        (objectives.text_to_text, ["DataCollatorForSeq2Seq"]),
    ):
        with refuses(ValueError, *values):
            Collator(builder, IDS, {"encoder": 64})
    with refuses(ValueError, "whole"):
        Collator(objectives.masked_lm, IDS, {"encoder": 64}, packing="whole")
    with refuses(ValueError, "concatenate"):
        Collator(objectives.fill_in_the_middle, IDS, {"decoder": 64}, packing="concatenate")
    rates = {"a": (objectives.causal_lm, lambda step: 1.0)}
    with refuses(ValueError, "rates", "mixture"):
        Collator(lambda ids: objectives.mixture(ids, rates), IDS, {"decoder": 64})


@pytest.mark.slow
def test_sentence_pairs_of_a_single_row_raise():
    pairs = Collator(objectives.next_sentence_prediction, IDS, {"encoder": 64})
    with refuses(ValueError, "drop_last"):
        pairs([[5, 6, 7, 8]])
    assert (pairs([[5, 6, 7, 8], [9, 10, 11, 12]])["labels"] != -100).any()


def test_weights_other_than_0_and_1_raise():
    def doubled(ids):
        plain = objectives.causal_lm(ids)

        def corrupt(*args):
            features = plain.corrupt(*args)
            return features | {"targets_weights": 2 * features["targets_weights"]}

        return plain._replace(corrupt=corrupt)

    assert build(doubled, IDS).loss is token_loss
    with refuses(ValueError, 2, 0, 1):
        Collator(doubled, IDS, {"decoder": 16})([[5, 6, 7]])


def test_text_without_ids_and_a_single_length_raise(collator):
    with refuses(ValueError, "text", "'input_ids'", "encode_texts"):
        collator("causal_lm")([{"text": "not tokenized"}])
    with refuses(ValueError, "sequence_lengths", 64):
        Collator(objectives.masked_lm, IDS, 64)


def test_too_long_or_empty_texts_raise(collator, examples):
    ours = collator("causal_lm")
    assert ours.max_tokens == 46
    ours([[5] * 46])
    with refuses(ValueError, "47", "46", "max_length"):
        ours([[5] * 47])
    with refuses(ValueError, "2 texts"):
        ours([[], [1]])


def test_special_id_within_text_raises_with_its_position(collator, tokenizer):
    ours = collator("masked_lm")
    hostile = "HTML ends a </s> here"
    at = tokenizer(hostile).input_ids.index(1)
    framed = [0, *tokenizer(hostile).input_ids]  # the position is counted in the input
    for given, place in ((tokenizer(hostile), at), (framed, at + 1)):
        values = "Row 1", "id 1 (eos)", f"position {place}", "split_special_tokens=True"
        with refuses(ValueError, *values):
            ours([tokenizer("a text"), given])
    with refuses(ValueError, "encode_texts"):
        ours([tokenizer("a [X] b")])
    ours([tokenizer(hostile, split_special_tokens=True)])


@pytest.fixture(scope="module")
def tokenizers_of_transformers(tmp_path_factory, tokenizer):
    """Returns name -> (tokenizer, whether `split_special_tokens` is enough)."""
    made = {"bytes of ours": (tokenizer, True)}
    for kind in ("bpe", "unigram"):
        folder = tmp_path_factory.mktemp(kind)
        path = str(folder / "spiece.model")
        train_sentencepiece([inspect.getsource(os)], path, size=600, model_type=kind)
        vocabulary_tokenizer = tokenization.sentencepiece_tokenizer(path)
        write_tokenizer(
            str(folder), Vocabulary(vocabulary_tokenizer, token_ids(vocabulary_tokenizer), {})
        )
        made[f"{kind} of ours"] = transformers.AutoTokenizer.from_pretrained(folder), True
        if kind == "unigram":
            (folder / "tokenizer.json").unlink()
            made["T5"] = transformers.T5Tokenizer.from_pretrained(folder), False
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "[", "]", "mask"]
    bert = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    return made | {"BERT": (bert, True)}


@pytest.mark.parametrize("kind", ["bytes of ours", "bpe of ours", "unigram of ours", "T5", "BERT"])
def test_encode_texts_never_makes_special_tokens(kind, tokenizers_of_transformers):
    theirs, splits = tokenizers_of_transformers[kind]
    names = [name for name in theirs.all_special_tokens if name != theirs.unk_token]
    texts = [f"a {name} b" for name in names] + ["".join(names), " ".join(names), "a＜/s＞b"]
    special = set(theirs.all_special_ids) - {theirs.unk_token_id}
    assert len(names) >= 4 and not special.isdisjoint(theirs(texts[-2]).input_ids)
    encoded = encode_texts(theirs, texts)
    assert all(ids and special.isdisjoint(ids) for ids in encoded)
    plain = {"split_special_tokens": True, "add_special_tokens": False}
    assert splits == all(special.isdisjoint(theirs(text, **plain).input_ids) for text in texts)
    for text in ("a b", "b a, a"):
        assert encode_texts(theirs, [text]) == [theirs(text, add_special_tokens=False).input_ids]


def test_transformers_ids_come_from_tokenizer(tokenizer):
    ids = transformers_ids(tokenizer, T5)
    assert (ids.pad, ids.eos, ids.bos, ids.size) == (0, 1, 0, len(tokenizer))
    assert ids.mask == tokenizer.mask_token_id and ids.cls == tokenizer.cls_token_id
    assert ids.sentinels[0] == tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert dict(ids.modes)["X"] == tokenizer.convert_tokens_to_ids("[X]")
    with refuses(ValueError, "resize_token_embeddings"):
        transformers_ids(tokenizer, transformers.T5Config(vocab_size=300))
    with refuses(ValueError, "PreTrainedTokenizerFast"):
        transformers_ids(inspect, T5)
