"""Eval metrics: functions of a trained run that return figures.

    def repetition(subject: Subject, *, texts: int = 64) -> list[Figure]: ...

The first figure summarizes the eval metric and has its name. The other figures are its parts.
Settings are keyword arguments, which a comparison's gin file binds. An eval metric uses the same
text and random numbers for every run. If it cannot measure a model, it raises ValueError and names
suitable models.

`EVAL_METRICS` maps the names that `pretrax evaluate --eval_metric=NAME` takes to eval metrics.
"""

from collections.abc import Callable

from .acceptability import minimal_pairs
from .belonging_texts import synthetic_pairs
from .completions import synthetic_completions
from .compression import bits_per_byte
from .context_learning import in_context
from .costs import cost
from .exact_sites import conserved_columns, variant_effects
from .finetuning import finetune
from .generations import infilling
from .heldout_loss import loss_under
from .known_answers import synthetic_questions
from .memorizing import memorization
from .probes import classify, pairs, retrieve, tag
from .rankings import fill_in
from .restored_masks import unmasking
from .text_pairs import pair_accuracy
from .word_senses import word_in_context
from .writing import finetune_to_write
from .written_answers import synthetic_answers

EVAL_METRICS: dict[str, Callable] = {
    eval_metric.__name__: eval_metric
    for eval_metric in (
        loss_under,
        bits_per_byte,
        minimal_pairs,
        classify,
        tag,
        pairs,
        retrieve,
        finetune,
        finetune_to_write,
        fill_in,
        in_context,
        word_in_context,
        infilling,
        unmasking,
        pair_accuracy,
        synthetic_questions,
        synthetic_completions,
        synthetic_answers,
        synthetic_pairs,
        variant_effects,
        conserved_columns,
        memorization,
        cost,
    )
}
