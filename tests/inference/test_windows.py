"""Rows that are longer than a model's positions, or longer than the rows of training."""

import re
import warnings

import pytest

from pretrax.inference import (
    Decoding,
    Options,
    classify,
    continue_blocks,
    embed,
    fill_masks,
    generate,
    insert,
    score,
    unmask,
)
from pretrax.inference.prompting.prompts import text_prompt
from pretrax.inference.prompting.windows import BeyondTraining
from tests.inference.runs import CLASSES, trained
from tests.refusals import refuses, warns


def generated(one, text, max_new=4):
    mode = "continue" if one.model.layout == "decoder" else "respond"
    return generate(one, [text_prompt(one, mode, text)], Options(Decoding(max_new)))


def classified(one, text):
    return classify(one, [text])


CASES = {  # each row has 8 slots: the letters of the text, bos or cls, and sep, eos or new tokens
    "decoder": (generated, "decoder", "causal_lm", "a" * 3),
    "encoder-decoder": (generated, "encoder_decoder", "text_to_text", "a" * 7),
    "score": (lambda one, text: score(one, [("", text)]), "decoder", "causal_lm", "a" * 7),
    "score in place": (lambda one, text: score(one, [("", text)]), "encoder", "masked_lm", "a" * 6),
    "mask": (lambda one, text: fill_masks(one, [text]), "encoder", "masked_lm", "[MASK]" + "a" * 5),
    "unmask": (lambda one, text: unmask(one, [text]), "encoder", "masked_lm", "[MASK]" + "a" * 5),
    "embed": (lambda one, text: embed(one, [text]), "encoder", "masked_lm", "a" * 6),
    "classify": (classified, "encoder", "sequence_classification", "a" * 6),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
def test_texts_longer_than_in_training_give_a_warning(case):
    apply, builder, objective, text = CASES[case]
    classes = dict(classes=CLASSES, num_classes=3) if apply is classified else {}
    trained_model = trained(builder, objective, **classes)
    stack = "decoder" if builder == "decoder" else "encoder"
    trained_model = trained_model._replace(lengths={"encoder": 8, "decoder": 8})
    with warnings.catch_warnings(action="error"):
        apply(trained_model, text)
    with warns(BeyondTraining, stack, 9, 8):
        apply(trained_model, text + "a")


def test_warning_names_the_remaining_tokens():
    trained_model = trained("decoder", "causal_lm")._replace(lengths={"decoder": 8})
    with warns(BeyondTraining, 6, "max_new=4"):
        generated(trained_model, "aaa", max_new=6)


@pytest.mark.parametrize(
    "write, builder, objective",
    [(insert, "encoder", "insertion_lm"), (continue_blocks, "decoder", "block_diffusion")],
)
def test_long_generations_warn_without_showing_special_tokens(write, builder, objective):
    trained_model = trained(builder, objective)._replace(lengths={builder: 8})
    with warns(BeyondTraining, 40) as caught:
        write(trained_model, ["aaa"], Options(Decoding(max_new=40)))
    assert not re.search(r"aaa.*(<pad>|<mask>)", str(caught[0].message))


def test_all_prompts_are_checked_before_generation():
    short = trained("decoder", "causal_lm", positions="learned", max_positions=16)
    asked = [text_prompt(short, "continue", "a" * n) for n in (1, 12)]
    answered = []
    with refuses(ValueError, "17", "16"):
        generate(short, asked, Options(Decoding(4, batch_size=1), on_batch=answered.append))
    assert not answered


def test_too_long_text_is_shown_in_the_error():
    limited = dict(positions="learned", max_positions=16)
    trained_model = trained(
        "encoder", "sequence_classification", classes=CLASSES, num_classes=3, **limited
    )
    with refuses(ValueError, "Ada"):
        classify(trained_model, ["tea", "Ada wrote it, all of it"])
    short_model = trained("decoder", "causal_lm", **limited)
    with refuses(ValueError, "Ada"):
        generated(short_model, "Ada wrote it, all of it")
