"""Exports support the calls of BabyLM's 2025 evaluation pipeline.

The pipeline reads the tokens of a sentence with their characters, and the log-probability of the
sentence's end.

Source: https://github.com/babylm/evaluation-pipeline-2025, evaluation_pipeline/sentence_zero_shot.
"""

import numpy as np
import pytest
import torch
import transformers

from pretrax.cli import convert
from pretrax.inference.answering.scoring import score
from pretrax.training.trained_models import open_run
from tests.inference import runs
from tests.parity.saved_models import BERT_LIKE

BEGINNING, END = "Ada wrote", " it, café."
OPENED = dict(trust_remote_code=True, revision=None)


@pytest.fixture
def exported(tmp_path):
    """Returns (model, objective, …) -> the run's model, and the export as the pipeline opens it."""

    def export(builder, objective, kind, **settings):
        directory = runs.write_run(tmp_path / "run", builder, objective, **settings)
        convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
        read = transformers.AutoProcessor.from_pretrained
        processor = read(str(tmp_path / "out"), padding_side="right", **OPENED)
        tokenizer = getattr(processor, "tokenizer", processor)
        return open_run(directory), tokenizer, kind.from_pretrained(tmp_path / "out", **OPENED)

    return export


def completed(tokenizer, sentence: str, completion: str):
    """Returns the tokens of a sentence, and the slots of those that overlap its completion."""
    read = tokenizer(text=sentence, return_offsets_mapping=True)
    assert read["attention_mask"] == [1] * len(read["input_ids"])
    begins = len(sentence) - len(completion)
    return read["input_ids"], [
        i for i, (_, end) in enumerate(read["offset_mapping"]) if end > begins
    ]


@pytest.mark.slow
def test_causal_model_scores_sentence_ending(exported):
    ours, tokenizer, model = exported(
        "decoder", "causal_lm", transformers.AutoModelForCausalLM, num_kv_heads=1
    )
    tokens, slots = completed(tokenizer, BEGINNING + END, END)
    assert tokenizer.decode([tokens[i] for i in slots]) == END
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    inputs = torch.tensor([[*tokens[:-1], pad, pad]])  # padded as in a batch with a longer sentence
    mask = (torch.arange(inputs.shape[1]) < len(tokens) - 1).long()[None]
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=mask)["logits"]
    log_probs = torch.log_softmax(logits, -1)[0]
    found = sum(float(log_probs[i - 1, tokens[i]]) for i in slots)
    (wanted,) = score(ours, [(BEGINNING, END)])
    assert found == pytest.approx(wanted.log_prob, abs=1e-4)


@pytest.mark.slow
def test_masked_model_scores_each_token(exported):
    bert = BERT_LIKE | dict(vocabulary_layer=True, vocabulary_bias=True, logits_via_embedding=True)
    ours, tokenizer, model = exported(
        "encoder", "masked_lm", transformers.AutoModelForMaskedLM, **bert
    )
    sentence = BEGINNING + END
    tokens, slots = completed(tokenizer, sentence, sentence)
    assert tokenizer.pad_token_id is not None
    inputs = torch.tensor([tokens] * len(slots))
    inputs[torch.arange(len(slots)), slots] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs))["logits"]
    log_probs = torch.log_softmax(logits, -1)[torch.arange(len(slots)), slots]
    found = [float(row[tokens[i]]) for row, i in zip(log_probs, slots)]
    (wanted,) = score(ours, [("", sentence)])
    np.testing.assert_allclose(found, wanted.log_probs, atol=1e-4)
