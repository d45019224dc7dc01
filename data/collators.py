"""Makes batches for PyTorch models of `transformers`, for every objective whose loss they compute.

    collator = Collator(objectives.masked_lm, ids, {"encoder": 512}, seed=0)
    transformers.Trainer(model, arguments, data_collator=collator, train_dataset=tokenized)

PyTorch is imported when the first batch is made. JAX draws the noise in the same process.
"""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from ..constraints import Natural, check_settings
from ..objectives import (
    Objective,
    Row,
    RowGroup,
    TokenIds,
    batched,
    check_token_ids,
    layouts,
    members_of,
    row_groups,
)
from ..objectives.contract import Builder, build, is_scheduled
from ..objectives.losses import token_loss
from ..objectives.sentence_pairs import SummedLosses, pair_loss
from . import packing as packing_policies
from .corpus import Document
from .token_ids_json import special_roles, text_checker

IGNORED = -100  # label that the losses of `transformers` ignore

# The layout of a model, the streams that it needs, and the streams that it accepts.
_TARGETS = {"targets"}
_LAYOUTS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("decoder", _TARGETS, {"targets", "stand_ins"}),
    ("encoder_decoder", {"inputs", "targets"}, {"inputs", "targets"}),
    ("encoder", {"inputs"}, {"inputs", "types", "labels", "pools"}),
)


class Collator:
    """Corrupts the texts of a batch, and returns the tensors that a model of `transformers` takes.

        ids = special_tokens.transformers_ids(tokenizer, model.config)
        collator = Collator(objectives.span_corruption, ids, {"encoder": 512, "decoder": 114})
        collator([{"input_ids": [71, 8, 12]}, {"input_ids": [6, 21]}])["labels"]

    The objective determines the type of the model and its tensors:

    - An objective that predicts in place, such as `masked_lm`, is for an encoder, such as
      `BertForMaskedLM`. The tensors are `input_ids`, `attention_mask` and `labels`.
    - An objective that predicts from left to right, such as `causal_lm`, is for a decoder, with the
      same tensors.
    - An objective with inputs and targets, such as `span_corruption`, is for an encoder-decoder,
      with `decoder_input_ids` in addition.
    - An objective on pairs of texts, such as `next_sentence_prediction`, has `token_type_ids`, too.
      The class of each row is in `labels`, or in `next_sentence_label` if `then` adds masks.

    Labels are -100 if they do not count in the loss. Tensors are i64[rows, slots], padded to the
    longest row of the batch. A batch is a list of mappings with `input_ids`, or
    a list of lists of ids. Special tokens around a text are removed, since the objective adds its
    own. As in a run, end-of-sequence follows each document if the objective reads a stream and does
    not append end-of-sequence itself.

    Args:
      builder: the builder of the objective, such as `ul2`. Use `functools.partial` for settings.
      ids: the token ids of the tokenizer, from
        `corpora.vocabularies.special_tokens.transformers_ids`.
      sequence_lengths: number of slots of each stack of the model: {"encoder": 512},
        {"decoder": 1024} or both. A decoder uses one slot for `ids.bos`.
      packing: "single" puts one text of at most `max_tokens` tokens into each row. "concatenate"
        joins the texts of a batch and cuts them into rows; the last may be short.
      seed: seed of the noise. The noise is a function of the seed and the batch's tokens, so it
        does not depend on the number of workers or on interruptions. If the loader shuffles, the
        noise differs from epoch to epoch. Otherwise it is the same, for example in evaluation.

    Raises ValueError, with the reason, for an objective whose loss no such model computes, and for
    sequence lengths that `row_groups` rejects. Calls raise ValueError for a text that is too long,
    for special ids within a text, for loss weights other than 0 and 1, and for a single row if
    texts are paired. Raises RuntimeError in a process that was forked from one that has called a
    collator.
    """

    def __init__(
        self,
        builder: Builder,
        ids: TokenIds,
        sequence_lengths: Mapping[str, int],
        *,
        packing: Literal["single", "concatenate"] = "single",
        seed: Natural = 0,
    ):
        settings = {"sequence_lengths": sequence_lengths, "packing": packing, "seed": seed}
        check_settings(Collator.__init__, settings, "Collator.")
        self._builder = builder
        self._ids = check_token_ids(ids)
        self._seed = seed
        objective = _facts_of(builder, ids)
        self._layout = _layout_of(objective)
        self._pairs_rows = pair_loss in _losses_of(objective)
        self._group = _row_group(objective, self._layout, ids, sequence_lengths)
        rates: list[Any] = [member.rate for member in members_of(objective)]
        if any(map(is_scheduled, rates)):
            raise ValueError("The rates of the mixture follow a schedule, expected numbers.")
        self._rates = np.asarray(rates) / sum(rates)
        self._policy, marks = packing_policies.resolve_packing(objective, packing)
        layout = layouts.LAYOUTS[self._layout]
        # With one text per row, no end of document is needed if the prompt form ends with one.
        closed = any(form.after[-1:] == (ids.eos,) for form in objective.facts.prompt_forms)
        end = ids.eos if marks and not (closed and packing == "single") else None
        planned = packing_policies.plan_packing(
            self._policy, objective, layout, [self._group], end_of_document=end
        )
        shortest = min(planned.limits.values(), key=lambda limit: limit.raw)
        self._packing = planned._replace(limits={0: shortest})
        self._compiled: Callable | None = None

    @property
    def max_tokens(self) -> int:
        """Returns the number of tokens of the longest text that fits into a row."""
        return min(self._group.raw_lengths) - (self._packing.end_of_document is not None)

    def __call__(self, examples: Sequence[Any]) -> dict[str, Any]:
        import torch

        _check_process()
        texts = [self._text(example, row) for row, example in enumerate(examples)]
        batch = self._arranged(self._rows(texts))
        tensors = _NAMED[self._layout](jax.tree.map(np.asarray, batch), self._ids.pad)
        return {name: torch.from_numpy(x.astype(np.int64)) for name, x in tensors.items()}

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_compiled": None}  # Each worker compiles its own function.

    def _text(self, example: Any, row: int) -> np.ndarray:
        """Returns i32[n]: the text of an example, without the special tokens around it."""
        if isinstance(example, Mapping) and "input_ids" not in example:
            raise ValueError(
                f"Row {row} of the batch (from 0) has {sorted(example)}, expected 'input_ids': "
                "tokenize the texts with "
                "pretrax.corpora.vocabularies.special_tokens.encode_texts(tokenizer, texts)."
            )
        given = example["input_ids"] if isinstance(example, Mapping) else example
        tokens = np.atleast_1d(np.asarray(given))
        around = [i for i in (self._ids.pad, self._ids.bos, self._ids.eos) if i is not None]
        around += [i for i in (self._ids.cls, self._ids.sep) if i is not None]
        inside = np.flatnonzero(~np.isin(tokens, around))
        if not inside.size:
            return np.zeros(0, np.int32)
        tokens = tokens[inside[0] : inside[-1] + 1]
        self._check_no_special_id(tokens, row, int(inside[0]))
        text_checker(self._ids)(tokens, f"Row {row} of the batch")
        if self._policy == "single" and tokens.size > self.max_tokens:
            raise ValueError(
                f"Got a text of {tokens.size} tokens, expected at most {self.max_tokens}: cut it, "
                f"as tokenizer(…, truncation=True, max_length={self.max_tokens}, "
                'add_special_tokens=False) does, or give packing="concatenate".'
            )
        return tokens.astype(np.int32)

    def _check_no_special_id(self, tokens: np.ndarray, row: int, start: int) -> None:
        """Raises ValueError for a special id in a text, which begins at slot `start` of a row."""
        roles = special_roles(self._ids)
        is_special = np.isin(tokens, list(roles))
        if not is_special.any():
            return
        first = int(np.argmax(is_special))
        token = int(tokens[first])
        raise ValueError(
            f"Row {row} of the batch (from 0): got the special id {token} ({roles[token]}) at "
            f"position {start + first}, within the text, expected only ids of text. The usual "
            'cause is a text with the name of a special token, such as "</s>" or "[X]": call '
            "tokenizer(text, split_special_tokens=True), which reads the name as text. Some "
            "tokenizers, such as T5Tokenizer, ignore this setting. For these, tokenize with "
            "pretrax.corpora.vocabularies.special_tokens.encode_texts(tokenizer, texts)."
        )

    def _rows(self, texts: list[np.ndarray]) -> list[Row]:
        documents = [Document(text) for text in texts if text.size]
        rows = packing_policies.rows_of_documents(documents, self._packing)
        if not rows:
            raise ValueError(
                f"Got {len(texts)} texts without any token, expected some tokens: leave these "
                "texts out."
            )
        if self._pairs_rows and len(rows) == 1:
            raise ValueError(
                "Got a batch of one row, expected two or more, because this objective pairs texts "
                "of different rows: drop the last batch of the loader (drop_last=True, or "
                "dataloader_drop_last of TrainingArguments), or choose another batch size."
            )
        return rows

    def _arranged(self, rows: list[Row]) -> dict[str, Any]:
        """Returns the arranged features of rows.

        Batches are filled to a power of two, so that few sizes are compiled.
        """
        crc = zlib.crc32(np.concatenate([row.tokens for row in rows]).tobytes())
        crc = zlib.crc32(np.asarray([row.tokens.size for row in rows]).tobytes(), crc)
        draw = np.random.default_rng((self._seed, crc))
        members = draw.choice(self._rates.size, len(rows), p=self._rates)
        rows = [row._replace(member=member) for row, member in zip(rows, members)]
        # Fill with rows of the batch, so that the last rows have partners.
        size = 1 << (len(rows) - 1).bit_length()
        filled = [rows[i % len(rows)] for i in range(size)]
        batch = packing_policies.stacked(filled, self._group.row_length)
        key = jax.random.fold_in(jax.random.key(self._seed), crc)
        if self._compiled is None:
            self._compiled = _compiled(self._builder, self._ids, self._layout, self._group)
        arranged = self._compiled(jax.random.split(key, size), batch)
        return {name: x[: len(rows)] for name, x in arranged.items()}


# --- checks of the objective before any batch ---------------------------------------------------


def _facts_of(builder: Builder, ids: TokenIds) -> Objective:
    """Returns the objective. Only its facts and lengths may be used.

    It is built while JAX traces, so that no backend starts in a process that may be forked.
    """
    built: list[Objective] = []
    jax.eval_shape(lambda: built.append(build(builder, ids)))
    return built[0]


def _losses_of(objective: Objective) -> Sequence[Callable]:
    loss = objective.loss
    return loss.losses if isinstance(loss, SummedLosses) else (loss,)


def _layout_of(objective: Objective) -> str:
    """Returns the layout of the models of `transformers` that compute the loss.

    Raises ValueError, with the reason, if there are no such models.
    """
    unknown = [loss for loss in _losses_of(objective) if loss not in (token_loss, pair_loss)]
    heads = list(objective.facts.heads)
    streams = set(objective.lengths(2)) - {"sentinels", "both"}
    if objective.facts.rows.column:
        raise ValueError(
            f"The objective reads {objective.facts.rows.description}, expected an objective that "
            "reads only text. For examples, use a collator of transformers, such as "
            "DataCollatorForSeq2Seq."
        )
    if objective.adaptation:
        raise ValueError(
            "The objective's noise depends on the model, which a collator cannot access, expected "
            "an objective such as masked_lm."
        )
    if unknown or objective.facts.couples_rows or objective.facts.requires:
        raise ValueError(
            f"A model of transformers computes the mean cross-entropy of its labels, but this "
            f"objective has another loss, with the heads {heads}: use `objectives.corruptor`, and "
            "compute the loss in your own training loop."
        )
    for layout, needed, possible in _LAYOUTS:
        if needed <= streams <= possible:
            return layout
    raise ValueError(
        f"The objective has {sorted(streams)}, expected only targets (a decoder), inputs and "
        "targets (an encoder-decoder), or inputs and labels (an encoder), because models of "
        "transformers take only their own positions and attention."
    )


def _row_group(
    objective: Objective, layout: str, ids: TokenIds, sequence_lengths: Mapping[str, int]
) -> RowGroup:
    shape = dict(sequence_lengths)
    if layout == "decoder" and shape.keys() == {"decoder"}:
        shape["decoder"] -= 1  # The first label is predicted from an additional slot.
    (group,) = row_groups(objective, layouts.LAYOUTS[layout], ids, [shape])
    return group


# The process in which a batch was made. A fork of it would inherit JAX without its threads.
_made_in: list[int] = []


def _check_process() -> None:
    if _made_in and _made_in[0] != os.getpid():
        raise RuntimeError(
            "This process was forked from a process in which a collator has used JAX, so JAX would "
            "wait forever: call collators only in the workers, or set the loader's "
            'multiprocessing_context="forkserver" (dataloader_multiprocessing_context of '
            "TrainingArguments)."
        )
    _made_in[:] = [os.getpid()]


def _compiled(builder: Builder, ids: TokenIds, layout: str, group: RowGroup) -> Callable:
    corrupt = batched(build(builder, ids), group.features)
    arrange = layouts.LAYOUTS[layout].arrange

    @jax.jit
    def arranged(keys_B, rows_B: Row):
        features = corrupt(keys_B, rows_B)
        return jax.vmap(lambda row: arrange(row, group.stacks, ids.bos, 1))(features)

    return arranged


# --- conversion to the names of transformers ----------------------------------------------------


def _encoder_tensors(batch: Mapping[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    tensors = _stack_tensors("encoder", batch, pad)
    slots = tensors["input_ids"].shape[1]
    if "encoder_types" in batch:
        tensors["token_type_ids"] = batch["encoder_types"][:, :slots]
    if "encoder_target_tokens" in batch:
        counts = _counts(batch["encoder_loss_weights"])
        rows, predicted = np.nonzero(counts)
        tensors["labels"] = np.full_like(tensors["input_ids"], IGNORED)
        at = batch["encoder_target_slots"][rows, predicted]
        tensors["labels"][rows, at] = batch["encoder_target_tokens"][rows, predicted]
    if "pools_labels" in batch:
        counts = _counts(batch["pools_weights"][:, 0])
        pairs = np.where(counts, batch["pools_labels"][:, 0], IGNORED)
        tensors["next_sentence_label" if "labels" in tensors else "labels"] = pairs
    return tensors


def _decoder_tensors(batch: Mapping[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    """Returns tensors with one more slot, since the model shifts labels to the left by one slot."""
    tensors = _stack_tensors("decoder", batch, pad)
    live = tensors["attention_mask"].astype(bool)
    slots = live.shape[1]
    targets = batch["decoder_target_tokens"][:, :slots]
    labels = np.where(_counts(batch["decoder_loss_weights"][:, :slots]), targets, IGNORED)
    ids = np.pad(tensors["input_ids"], ((0, 0), (0, 1)), constant_values=pad)
    first = live[:, :1]
    rows = np.arange(len(ids))
    last = live.sum(1)
    ids[rows, last] = targets[rows, np.maximum(last - 1, 0)]
    return {
        "input_ids": ids,
        "attention_mask": np.concatenate([first, live], axis=1),
        "labels": np.concatenate([np.full_like(labels[:, :1], IGNORED), labels], axis=1),
    }


def _encoder_decoder_tensors(batch: Mapping[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    written = _stack_tensors("decoder", batch, pad)
    slots = written["input_ids"].shape[1]
    counts = _counts(batch["decoder_loss_weights"][:, :slots])
    labels = np.where(counts, batch["decoder_target_tokens"][:, :slots], IGNORED)
    return _stack_tensors("encoder", batch, pad) | {
        "decoder_input_ids": written["input_ids"],
        "labels": labels,
    }


_NAMED = {
    "encoder": _encoder_tensors,
    "decoder": _decoder_tensors,
    "encoder_decoder": _encoder_decoder_tensors,
}


def _stack_tensors(stack: str, batch: Mapping[str, np.ndarray], pad: int) -> dict[str, np.ndarray]:
    """Returns the ids and the attention mask of a stack, cut to the longest row."""
    live = batch[f"{stack}_segment_ids"] > 0
    slots = max(int(live.sum(1).max()), 1)
    ids = np.where(live, batch[f"{stack}_input_tokens"], pad)
    return {"input_ids": ids[:, :slots], "attention_mask": live[:, :slots]}


def _counts(weights: np.ndarray) -> np.ndarray:
    """Returns which labels count in the loss. Raises ValueError for weights other than 0 and 1."""
    others = weights[~np.isin(weights, (0, 1))]
    if others.size:
        raise ValueError(
            f"Got a loss weight of {others[0]:g}, expected 0 or 1, because a model of transformers "
            "counts each label once or not at all: choose another objective, or other settings."
        )
    return weights > 0
