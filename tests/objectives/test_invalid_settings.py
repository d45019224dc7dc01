"""Builders of objectives reject invalid settings and vocabularies."""

import functools

import pytest

from pretrax import objectives
from pretrax.objectives import (
    contrastive,
    geometric_lengths,
    masked_lm,
    sentence_order_prediction,
    span_corruption,
    ul2,
)
from tests.objectives.registry import IDS
from tests.refusals import refuses

unframed = functools.partial(masked_lm, framed=False)


def without(**fields):
    """Returns the setting of a vocabulary that lacks some tokens."""
    return {"ids": IDS._replace(**fields)}


NO_MASK = without(mask=None)
NO_SENTENCES = without(sentence_ends=b"")


@pytest.mark.parametrize(
    "builder, settings, values",
    [
        ("blank_infilling", {"density": 0}, ["density", 0, 1]),
        ("blank_infilling", {"density": 1}, ["density", 0, 1]),
        ("blank_infilling", {"mean_span_length": 0}, ["mean_span_length", 0]),
        ("blank_infilling", {"mean_span_length": 21}, ["mean_span_length", 21]),
        (
            "block_diffusion",
            {"lowest_rate": 0.8, "highest_rate": 0.3},
            ["lowest_rate", 0.8, "highest_rate", 0.3],
        ),
        ("causal_diffusion", {"window": 0.9}, ["window", 0.9]),
        ("causal_diffusion", {"window": 17}, ["window", 17]),
        ("causal_diffusion", {"decay": 0}, ["decay", 0]),
        ("causal_diffusion", {"decay": 1}, ["decay", 1]),
        ("causal_diffusion", {"smoothing": 0}, ["smoothing", 0]),
        ("causal_masking", {"max_spans": 0}, ["max_spans", 1, 0]),
        ("causal_masking", {"max_spans": 1.5}, ["max_spans", 1, 1.5]),
        ("causal_masking", {"max_spans": 801}, ["max_spans", 800, 801]),
        ("contrastive", {"views": "rotation"}, ["views", "'dropout'", "'rotation'"]),
        ("contrastive", {"views": "cropping", "share": 1.0}, ["share", 1.0]),
        ("contrastive", {"temperature": 0.0}, ["temperature", 0, 0.0]),
        ("contrastive", {"pooling": "last"}, ["pooling", "'first'", "'mean'", "'last'"]),
        ("contrastive", {"loss": "clip"}, ["loss", "'info_nce'", "'clip'"]),
        ("dialogue", {"max_turns": 1}, ["max_turns", 2, 1]),
        ("dialogue", {"max_turns": 2.5}, ["max_turns", 2, 2.5]),
        ("fill_in_the_middle", {"rate": 1.5}, ["rate", 0, 1, 1.5]),
        ("fill_in_the_middle", {"spm_rate": -0.1}, ["spm_rate", -0.1]),
        ("fill_in_the_middle", {"spm": "smp"}, ["spm", "'spm'", "'spmv2'", "'smp'"]),
        ("future_summary", {"window": 1}, ["window", 2]),
        ("goldfish_loss", {"k": 1}, ["k", 1]),
        ("goldfish_loss", {"width": 0}, ["width", 0]),
        ("iid_denoising", {"noise_density": 0}, ["noise_density", 0]),
        ("iid_denoising", {"replace": "words"}, ["replace", "'spans'", "'words'"]),
        ("iid_denoising", {"predict": "half"}, ["predict", "'noise'", "'everything'", "'half'"]),
        ("iid_denoising", {"replace": "random"}, ["replace='random'", "predict", '"everything"']),
        ("iid_denoising", {"replace": "mask_or_random"}, ["replace='mask_or_random'"]),
        ("iid_denoising", {"mode": "Q"}, ["'Q'"]),
        ("masked_diffusion", {"lowest_rate": 0}, ["lowest_rate", 0]),
        ("masked_diffusion", {"lowest_rate": 1}, ["lowest_rate", 1]),
        ("masked_lm", {"rate": 0}, ["rate", 0, 1]),
        ("masked_lm", {"rate": 1}, ["rate", 0, 1]),
        ("masked_lm", {"rate": 1.5}, ["masked_lm.rate", 0, 1, 1.5]),
        ("masked_lm", {"rate": True}, ["rate", 0, 1, True]),
        ("masked_lm", {"mask_share": 1.1}, ["mask_share", 0, 1, 1.1]),
        ("masked_lm", {"mask_share": -0.1}, ["mask_share", 0, 1, -0.1]),
        (
            "masked_lm",
            {"mask_share": 0.8, "random_share": 0.3},
            ["mask_share", "random_share", 1, 0.8, 0.3],
        ),
        ("masked_lm", {"selection": "some"}, ["selection", "'exact'", "'bernoulli'", "'some'"]),
        ("masked_lm", {"max_predictions": 0}, ["max_predictions", 1, 0]),
        ("masked_lm", {"static_copies": 0}, ["static_copies", 1, 0]),
        ("masked_lm", {"span_lengths": (0.5, 0.4)}, ["span_lengths", 1, (0.5, 0.4)]),
        ("masked_lm", {"span_lengths": ()}, ["span_lengths", ()]),
        ("masked_lm", {"span_lengths": (1.5, -0.5)}, ["span_lengths", (1.5, -0.5)]),
        ("masked_lm", {"span_lengths": 3}, ["span_lengths", 3]),
        ("masked_lm", {"span_lengths": geometric_lengths(longest=257)}, [257, 256]),
        ("masked_next_token", {"rate": 0}, ["rate", 0]),
        ("mixed_diffusion", {"random_share": 0}, ["random_share", 0]),
        ("mixed_diffusion", {"random_share": 1}, ["random_share", 1]),
        ("mixed_diffusion", {"random_share": -0.1}, ["random_share", -0.1]),
        ("multi_token_prediction", {"tokens": 1}, ["tokens", 2]),
        ("multi_token_prediction", {"tokens": 2.5}, ["tokens", 2]),
        # With a coefficient of 0 the heads would not change, and below 0 their loss would rise.
        ("multi_token_prediction", {"ahead_scale": 0}, ["ahead_scale", 0]),
        ("multi_token_prediction", {"ahead_scale": -0.3}, ["ahead_scale", 0]),
        ("mutor", {"max_offset": 0}, ["max_offset", 0]),
        ("mutor", {"scale": 0.0}, ["scale", 0.0]),
        ("mutor", {"scale": 1.0}, ["scale", 1.0]),
        (
            "next_sentence_prediction",
            {"negatives": "random"},
            ["negatives", "'other'", "'same'", "'random'"],
        ),
        *(
            ("prefix_lm", {"suffix_share": share}, ["suffix_share"])
            for share in (0, -0.25, 1, 1.5, "half", 0.12345)
        ),
        ("replaced_token_detection", {"mask_share": 2}, ["mask_share", 0, 1, 2]),
        ("retromae", {"decoder_rate": 0.3}, ["decoder_rate", 0.5, 0.3]),
        ("sequence_classification", {"num_classes": 1}, ["num_classes", 2, 1]),
        *(
            ("span_corruption", {"noise_density": density}, ["noise_density"])
            for density in (0, 1, -0.1, 1.5, "much", 0.12345, 1e-12, float("nan"), float("inf"))
        ),
        *(
            ("span_corruption", {"mean_span_length": mean}, ["mean_span_length"])
            for mean in (0.5, 0, -3, (3, 1), (0, 4), (1, 2, 3), (1.5, 2), "long")
        ),
        ("span_corruption", {"placement": "start"}, ["placement", "end", "anywhere", "start"]),
        (
            "span_corruption",
            {"mean_span_length": 3, "length_drawn_per": "document"},
            ["length_drawn_per", "document", "mean_span_length", 3],
        ),
        (
            "span_corruption",
            {"mean_span_length": (1, 3), "length_drawn_per": "x"},
            ["length_drawn_per", "span", "document", "x"],
        ),
        ("superposed_lm", {"bag_size": 1}, ["bag_size", 1]),
        ("text_infilling", {"noise_density": 1.5}, ["noise_density", 1.5]),
        ("text_infilling", {"mean_span_length": 0.5}, ["mean_span_length", 1, 20, 0.5]),
        ("text_infilling", {"mean_span_length": 21}, ["mean_span_length", 1, 20, 21]),
        (
            "text_infilling",
            {"noise_density": 0.8, "mean_span_length": 3},
            ["noise_density", 0.8, "mean_span_length", 3],
        ),
        ("text_to_text", {"longest_answer": 0}, ["longest_answer", 1, 0]),
        (
            "then",
            {"first": masked_lm, "second": span_corruption},
            ["`then`", "masked_lm", "framed=False"],
        ),
        ("then", {"first": sentence_order_prediction, "second": ul2}, ["`then`", "mixture"]),
        ("then", {"first": contrastive, "second": unframed}, ["`then`", 2]),
        ("then", {"first": masked_lm, "second": unframed}, ["`then`", ["labels"]]),
        ("token_classification", {"num_classes": 0}, ["num_classes", 2, 0]),
        ("token_deletion", {"noise_density": 1}, ["noise_density", 1]),
        ("token_editing", {"wrong_share": 0}, ["wrong_share", 0]),
        ("token_editing", {"wrong_share": 1}, ["wrong_share", 1]),
        ("token_editing", {"scale": 0}, ["scale", 0]),
        ("ul2", {"preset": "papers"}, ["paper", "tutorial", "papers"]),
        ("ul2", {"rates": (1, 2, 3)}, [7, 3]),
    ],
)
def test_invalid_settings_raise(builder, settings, values):
    with refuses(ValueError, *values):
        getattr(objectives, builder)(IDS, **settings)


@pytest.mark.parametrize(
    "builder, settings, values",
    [
        ("bart", NO_MASK, ["'mask'"]),
        ("bart", NO_SENTENCES, ["sentence_ends"]),
        ("blank_infilling", NO_MASK, ["'mask'"]),
        ("causal_diffusion", NO_MASK, ["'mask'"]),
        ("contrastive_pairs", without(cls=None), ["cls"]),
        ("dialogue", without(sep=None), ["'sep'"]),
        ("fill_in_the_middle", without(fim=()), ['"fim"', 0]),
        ("gap_sentences", NO_SENTENCES, ["sentence_ends"]),
        ("iid_denoising", NO_MASK | {"replace": "mask"}, ["'mask'"]),
        ("masked_diffusion", NO_MASK, ["'mask'"]),
        ("masked_lm", NO_MASK, ["'mask'"]),
        ("masked_lm", without(word_starts=b"") | {"whole_words": True}, ["word_starts"]),
        ("masked_next_token", NO_MASK, ["'mask'"]),
        ("mixed_diffusion", NO_MASK, ["'mask'"]),
        ("mutor", NO_MASK, ["'mask'"]),
        ("replaced_token_detection", NO_MASK, ["'mask'"]),
        ("sentence_order_prediction", without(cls=None), ["'cls'"]),
        ("sentence_order_prediction", NO_SENTENCES, ["sentence_ends"]),
        ("sentence_permutation", NO_SENTENCES, ["sentence_ends"]),
        ("span_corruption", without(modes=()) | {"mode": "R"}, ["'R'"]),
        ("text_infilling", NO_MASK, ["'mask'"]),
        ("tidar", NO_MASK, ["'mask'"]),
        ("token_masking", NO_MASK, ["'mask'"]),
        ("ul2", without(modes=(("R", 32_100), ("X", 32_102))), ["S", "R", "X"]),
    ],
)
def test_vocabularies_without_required_tokens_raise(builder, settings, values):
    with refuses(ValueError, *values):
        getattr(objectives, builder)(**settings)
