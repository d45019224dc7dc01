"""Text-to-text fine-tuning: how well a model learns to answer texts.

Letters: B rows, T slots of the decoder.
"""

import collections
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
from annotated_types import MinLen

from ...constraints import Count, Positive, checked
from ...corpora.python_library.python_definitions import definition_examples
from ...corpora.python_library.python_questions import question_examples
from ...data import task_metrics
from ...inference import Decoding, Options, Trained, answer
from ...inference.answering.scoring import (
    answer_log_probs,
    answer_slots,
    answered_prompt,
    next_figures,
    token_log_probs,
)
from ...inference.decoding.batching import jitted
from ...inference.prompting.prompts import (
    Prompt,
    batch_prompts,
    prompts_width,
    starts_width,
    text_prompt,
)
from ...inference.prompting.windows import check_prompts
from ...objectives import text_to_text
from ...training.baselines import Tally, trivial_loss
from ..figures import HIGHER, LOWER, NATS_SAVED, Figure, peak_figures
from .parts.finetuning_steps import Peak, at_best_peak, from_scratch, shuffled_batches, stepped
from .parts.probing import validation_mask
from .parts.two_languages import translations
from .subject import Subject

FIGURES_VERSION = 3  # see `kept_figures.version_of`
SENTENCES = {"train": 1200, "validation": 240}  # the same numbers as for docstrings

TextAndAnswer = tuple[str, str]
Answered = tuple[Prompt, int]  # a prompt that ends with its answer, and the answer's token count


@checked
def finetune_to_write(
    subject: Subject,
    *,
    task: Literal["python_docstrings", "python_questions", "translation"] = "python_docstrings",
    steps: Count = 100,
    peaks: Annotated[Sequence[Positive], MinLen(1)] = (0.02, 0.05, 0.1),
    batch_size: Count = 16,
) -> list[Figure]:
    """Quality of the answers to held-out texts after text-to-text fine-tuning.

    - `finetune_to_write`: share of the baseline's nats that the model saves.
    - `finetune_to_write/bits_per_byte`: bits per byte of the true answers, given the texts.
    - `finetune_to_write/rouge_2`: F1 of pairs of words of greedily written answers.
    - `finetune_to_write/exact_match`: share of answers that are written exactly.
    - `finetune_to_write/from_scratch…`: the same for fresh parameters with the same recipe.
    - `finetune_to_write/gain`: the benefit of pre-training.

    The baseline predicts tokens by their frequencies in the training answers, with add-one
    smoothing, so runs with the same vocabulary are comparable. For written answers, the baselines
    are the most frequent pair of words (`rouge_2`) and the most frequent answer (`exact_match`).

    Args:
      task: "python_docstrings", to write the first paragraph of a docstring, given the code;
        "python_questions", to answer what a passage of code assigns to a name; or "translation",
        between the two languages of `comparison.eval_metrics.parts.two_languages`.
      peaks: peak learning rates, relative to the size of a parameter. The best is chosen on a part
        of the training examples. If it is at an edge of the grid, further peaks are tried.

    Raises ValueError for a model that does not write text.
    """
    pairs = texts_and_answers(subject, task)
    trained = with_answer_forms(subject.trained)
    answered = {
        split: [answered_prompt(trained, *pair) for pair in split_pairs]
        for split, split_pairs in pairs.items()
    }
    texts = [text_prompt(trained, "respond", text) for text, _ in pairs["validation"]]
    check_prompts(trained, texts, _longest(answered))  # Reject long texts before the training.
    figures = []
    starts = {"": trained, "/from_scratch": from_scratch(trained, subject.seed)}
    for start, model in starts.items():
        writer, peak = finetuned_writer(model, answered["train"], steps, peaks, batch_size)
        name = f"finetune_to_write{start}"
        figures.append(_figures(name, writer, pairs, answered))
        figures[-1] += peak_figures(name, peak.best, peak.grid)
    (first, *others), scratch = figures
    count = len(pairs["train"])
    note = f"{count:,} examples, a fifth of which choose the learning rate"
    first = first._replace(note=note)
    gain = first.value - scratch[0].value
    return [
        *(first, *others, *scratch),
        Figure("finetune_to_write/gain", gain, first.unit, HIGHER, 0.0),
    ]


# --- texts and answers by split -------------------------------------------------------------------


def texts_and_answers(subject: Subject, task: str) -> dict[str, list[TextAndAnswer]]:
    if task == "translation":
        sentences = iter(translations(sum(SENTENCES.values())))
        return {split: [next(sentences) for _ in range(size)] for split, size in SENTENCES.items()}
    subject.check_library_unseen()
    if task == "python_docstrings":
        return {
            split: [(pair.code, pair.docstring) for pair in definitions]
            for split, definitions in definition_examples().items()
        }
    return {
        split: [(question.text, question.value) for question in questions]
        for split, questions in question_examples().items()
    }


# --- fine-tuning ----------------------------------------------------------------------------------


def with_answer_forms(trained: Trained) -> Trained:
    """Returns the model with the prompt forms of `objectives.text_to_text`.

    Raises ValueError for a model that does not write text.
    """
    if trained.model.layout == "encoder" or "vocabulary" not in trained.model.heads:
        raise ValueError(
            f"Got a model of layout {trained.model.layout!r} with the heads "
            f"{', '.join(trained.model.heads) or 'none'}, expected an encoder-decoder or a decoder "
            "with the head vocabulary, which can learn to write: measure this one by finetune."
        )
    return trained._replace(prompt_forms=text_to_text(trained.ids).facts.prompt_forms)


def finetuned_writer(
    trained: Trained,
    answered: Sequence[Answered],
    steps: int,
    peaks: Sequence[float],
    batch_size: int,
) -> tuple[Trained, Peak]:
    """Returns the fine-tuned model and its peak learning rate.

    The peak is the best one on the last fifth of the examples, which are not used for training.
    """
    model = trained.model
    prompts = [prompt for prompt, _ in answered]
    check_prompts(trained, prompts, 0)
    start_width = starts_width(model, prompts) if model.layout == "encoder_decoder" else None
    widths = prompts_width(model, prompts), start_width  # one program for all batches

    def batch_of(chosen):
        rows = [answered[i] for i in chosen]
        batch = batch_prompts(model.layout, [row for row, _ in rows], trained.ids, *widths).batch
        is_scored_BxT = np.zeros(batch["decoder_input_tokens"].shape, np.float32)
        for row, is_scored_T in zip(rows, is_scored_BxT):
            is_scored_T[answer_slots(model.layout, *row)] = 1
        return batch, is_scored_BxT

    held = validation_mask(len(answered))
    numbers = np.arange(len(answered))

    def tried(peak: float) -> tuple[float, Trained]:
        loss = jitted(_loss, model)
        batches = map(batch_of, shuffled_batches(numbers[~held], steps, batch_size))
        params = stepped(loss, trained.params, batches, peak, steps)
        writer = trained._replace(params=params)
        nats = answer_nats(writer, [answered[i] for i in numbers[held]])
        return (-nats if math.isfinite(nats) else -math.inf), writer

    peak, (_, writer) = at_best_peak(peaks, tried)
    return writer, peak


def _loss(model, params, batch, is_scored_BxT):
    log_probs_BxT = next_figures(model, token_log_probs, (), params, batch)
    return -jnp.sum(log_probs_BxT * is_scored_BxT) / jnp.sum(is_scored_BxT)


# --- figures --------------------------------------------------------------------------------------


def _figures(
    name: str,
    writer: Trained,
    pairs: dict[str, list[TextAndAnswer]],
    answered: dict[str, list[Answered]],
) -> list[Figure]:
    texts, answers = zip(*pairs["validation"])
    _, training_answers = zip(*pairs["train"])
    items = [{"text": text} for text in texts]
    options = Options(Decoding(max_new=_longest(answered)))
    written = [record["answer"] for record in answer(writer, "respond", items, options)]
    usual_pairs = [_usual_pair(training_answers)] * len(answers)
    usual_answers = [task_metrics.majority(training_answers)] * len(answers)
    rouge, usual_rouge = (
        task_metrics.rouge(answers, texts)["rouge2"] for texts in (written, usual_pairs)
    )
    exact, usual_exact = (
        task_metrics.exact_match(answers, texts)["exact_match"]
        for texts in (written, usual_answers)
    )
    nats = answer_nats(writer, answered["validation"])
    baseline = _nats_by_frequency(answered, writer.ids)
    # Bits per byte for each nat of all answers.
    bits = 1 / math.log(2) / sum(len(text.encode()) for text in answers)
    return [
        Figure(name, 1 - nats / baseline, NATS_SAVED, HIGHER, 0.0),
        Figure(f"{name}/bits_per_byte", nats * bits, "bits per byte", LOWER, baseline * bits),
        Figure(f"{name}/rouge_2", rouge, "ROUGE-2 F1", HIGHER, usual_rouge),
        Figure(f"{name}/exact_match", exact, "share", HIGHER, usual_exact),
    ]


def _longest(answered: dict[str, list[Answered]]) -> int:
    return max(count for _, count in answered["train"])


def answer_nats(writer: Trained, answered: Sequence[Answered]) -> float:
    return -math.fsum(x for log_probs in answer_log_probs(writer, answered) for x in log_probs)


def _nats_by_frequency(answered: dict[str, list[Answered]], ids) -> float:
    training, heldout = (
        Tally(
            np.bincount(
                [token for prompt, count in answered[split] for token in prompt.start[-count:]],
                minlength=ids.size,
            ),
            numbers=False,
        )
        for split in ("train", "validation")
    )
    return trivial_loss(heldout, training)


def _usual_pair(answers: Sequence[str]) -> str:
    """Returns the most frequent pair of consecutive words.

    >>> _usual_pair(["Return the name.", "Return the size."])
    'Return the'
    """
    words = [answer_words.split() for answer_words in answers]
    counts = collections.Counter(
        pair for answer_words in words for pair in zip(answer_words, answer_words[1:])
    )
    return " ".join(counts.most_common(1)[0][0])
