"""An objective's own pairs of texts, classified by the model and by their words alone."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from ...constraints import checked
from ...data.corpus import Document, first_documents
from ...data.packing import rows_of_documents, stacked
from ...objectives import PromptForm, RowGroup, members_of
from ...objectives.losses import at_slots
from ...training.evaluator import EVALUATION_SEED
from ...training.planning import Plan
from ...training.step import corrupt_and_arrange
from ..figures import HIGHER, NEITHER, Figure
from .parts.bags_of_words import Bags, bags_of
from .parts.probing import best_probe
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
TRAINING_SEED = 20_200_104  # seed of the corruption of training rows, the same for every run
BATCH = 16  # number of rows of a batch


class TextPairs(NamedTuple):
    texts: list[tuple[str, str]]
    labels: np.ndarray  # i32[N]


Enough = Annotated[int, Ge(50)]  # smallest number of pairs to measure or to learn from


@checked
def pair_accuracy(
    subject: Subject, *, pairs: Enough = 1000, training_pairs: Enough = 4000
) -> list[Figure]:
    """Accuracy of the model on the objective's own held-out pairs of texts.

    The baseline is a logistic regression on the tf-idf of both texts, their products, or their
    cosine, fitted to pairs from training text. A task that it solves is too easy. Its own baseline
    (part `bag_of_words`) is the majority class.

    Args:
      pairs: number of held-out pairs, fewer if the text is too short.
      training_pairs: number of training pairs of the bag of words.

    Raises ValueError for an objective without pairs, and for fewer than 50 held-out or training
    pairs.
    """
    plan = subject.plan
    decode = subject.trained.decode
    member, group, form = _pair_member(plan)
    length = plan.packing.limits[member].raw
    pieces = plan.corpus.heldout(pairs * length)
    held = _batches(plan, member, group, pairs, pieces, EVALUATION_SEED)
    stream = plan.corpus.open_shard(0, 1)
    pieces = first_documents(iter(stream.next_document, None), training_pairs * length)
    training = _batches(plan, member, group, training_pairs, pieces, TRAINING_SEED)
    truth = _joined(held, form, decode)
    judged = _judged(plan.recipe.model, form.head, subject.saved.params, held)
    by_words = bag_of_words_classes(_joined(training, form, decode), truth.texts)
    most = np.bincount(truth.labels).max() / truth.labels.size
    words = float(np.mean(by_words == truth.labels))
    accuracy = float(np.mean(judged == truth.labels))
    note = f"{truth.labels.size} pairs; the baseline is a bag of words"
    unit = f"accuracy, {' or '.join(form.classes)}"  # tasks of other classes are not comparable
    return [
        Figure("pair_accuracy", accuracy, unit, HIGHER, words, note),
        Figure("pair_accuracy/bag_of_words", words, unit, NEITHER, float(most)),
    ]


def bag_of_words_classes(training: TextPairs, texts: Sequence[tuple[str, str]]) -> np.ndarray:
    bags = bags_of([text for pair in training.texts for text in pair])
    classes = int(training.labels.max()) + 1
    name, probe = best_probe(pair_features(bags, training.texts), training.labels, classes)
    return probe.predict(pair_features(bags, texts)[name])


def pair_features(bags: Bags, texts: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Returns three sets of features of pairs of texts by name.

    "cosine" is the cosine of both texts' tf-idf, f32[N, 1]. "products" adds their products, f32[N,
    1 + W]. "all" adds each text's tf-idf, f32[N, 1 + 3W], which shows the order.
    """
    u, v = (bags.rare_counts([pair[side] for pair in texts]) for side in (0, 1))
    lengths = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    cosine = np.sum(u * v, 1)[:, None] / np.maximum(lengths, 1e-6)[:, None]
    products = np.concatenate([cosine, u * v], 1)
    return {"cosine": cosine, "products": products, "all": np.concatenate([products, u, v], 1)}


# --- the objective's own pairs ------------------------------------------------------------------


def _pair_member(plan: Plan) -> tuple[int, RowGroup, PromptForm]:
    """Returns the first member of the objective that makes pairs, its row group and prompt form."""
    for number, member in enumerate(members_of(plan.recipe.objective)):
        for form in member.objective.facts.prompt_forms:
            if form.mode == "pair":
                group = next(g for g in plan.recipe.groups if number in g.members)
                return number, group, form
    raise ValueError(
        "Got a run whose objective makes no pairs of texts, expected one such as "
        "next_sentence_prediction or sentence_order_prediction."
    )


def _batches(
    plan: Plan, member: int, group: RowGroup, rows: int, pieces: Sequence[Document], seed: int
) -> list[dict]:
    """Returns the model's batches of rows, corrupted as in `Evaluator`."""
    packed = rows_of_documents(pieces, plan.packing, member)[:rows]
    packed = packed[: len(packed) // BATCH * BATCH]
    keys = jax.random.split(jax.random.key(seed), max(len(packed), 1))
    arrange = jax.jit(lambda keys, rows: corrupt_and_arrange(plan.recipe, group, keys, rows))
    return [
        arrange(keys[k : k + BATCH], stacked(packed[k : k + BATCH], group.row_length))
        for k in range(0, len(packed), BATCH)
    ]


def _joined(batches: Sequence[dict], form: PromptForm, decode) -> TextPairs:
    """Returns the pairs of the batches that count, as texts."""
    texts = []
    labels = []
    for batch in batches:
        batch = {name: np.asarray(x) for name, x in batch.items()}
        for row, pool in zip(*np.nonzero(batch["pools_weights"])):
            texts.append(_texts(batch, row, batch["pools_slots"][row, pool], form, decode))
            labels.append(batch["pools_labels"][row, pool])
    if not labels:
        raise ValueError("The text of this run makes no pair that counts: give longer documents.")
    return TextPairs(texts, np.array(labels))


def _texts(batch: dict, row: int, slot: int, form: PromptForm, decode) -> tuple[str, str]:
    tokens, segments, types = (
        batch[f"encoder_{name}"][row] for name in ("input_tokens", "segment_ids", "types")
    )
    own = (segments == segments[slot]) & ~np.isin(tokens, [*form.before, *form.after])
    first, second = (decode(tokens[own & (types == side)].tolist()) for side in (0, 1))
    return first, second


def _judged(model, head: str | None, params, batches: Sequence[dict]) -> np.ndarray:
    """Returns the class i[N] of each pair that counts."""

    @jax.jit
    def most_likely(params, batch):
        outputs = model.apply(params, batch)
        states = at_slots(outputs.hidden["top"], batch["pools_slots"])
        return jnp.argmax(outputs.head(head, states), -1)

    judged = [
        np.asarray(most_likely(params, b))[np.asarray(b["pools_weights"]) > 0] for b in batches
    ]
    return np.concatenate(judged)
