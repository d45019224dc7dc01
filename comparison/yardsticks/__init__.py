"""Yardsticks: functions of a trained run that return figures.

    def repetition(subject: Subject, *, texts: int = 64) -> list[Figure]: ...

The first figure sums the yardstick up and has its name; the others are parts of it. Settings are
keyword arguments, which a comparison's gin file binds. A yardstick reads the same text for every
run, draws nothing that the run's seed decides, and raises ValueError where the run's model cannot
be measured so, saying which can.

`YARDSTICKS` has those that `pretrax evaluate --yardstick=NAME` and gin files know by name.
"""

from collections.abc import Callable

from .acceptability import minimal_pairs
from .belonging_texts import world_pairs
from .completions import world_completions
from .compression import bits_per_byte
from .context_learning import in_context
from .costs import cost
from .finetuning import finetune
from .generations import continuation, infilling
from .heldout_loss import loss_under
from .known_answers import world_questions
from .probes import classify, pairs, retrieve, tag
from .rankings import fill_in, rank_classes
from .text_pairs import pair_accuracy
from .unmasking import unmasking
from .word_senses import word_in_context
from .writing import finetune_to_write
from .written_answers import world_answers

YARDSTICKS: dict[str, Callable] = {
    yardstick.__name__: yardstick
    for yardstick in (
        *(loss_under, bits_per_byte, minimal_pairs, classify, tag, pairs, retrieve, finetune),
        *(finetune_to_write, rank_classes, fill_in, in_context, word_in_context, continuation),
        *(infilling, unmasking, pair_accuracy, world_questions, world_completions),
        *(world_answers, world_pairs, cost),
    )
}
