"""`Options`: the settings with which a trained model answers, in every mode."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ...constraints import Count, NonNegative, Positive, PositiveShare, Share, check_fields
from ...objectives.prompt_forms import Pooling
from ..decoding.batching import Batching
from ..decoding.sampling import Sampling
from ..decoding.speculation import Draft, DraftCounts

# Orders of unmasking that support greedy decoding; "gibbs" always samples.
LikeliestOrder = Literal[
    "confidence", "margin", "entropy", "left_to_right", "random", "mask_predict", "ancestral"
]
Order = Literal[LikeliestOrder, "gibbs"]


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Settings of text generation.

        Decoding(max_new=32, temperature=0.8, top_p=0.95, samples=4)

    Raises:
      ValueError: A value is out of range, or values exclude each other.

    Attributes:
      max_new: Maximum number of new tokens.
      temperature: Sampling temperature. 0: greedy decoding.
      top_k: Number of most likely tokens to sample from. By default, all.
      top_p: Total probability of the most likely tokens to sample from (nucleus sampling). By
        default, 1.
      min_p: Least probability of a sampled token, relative to the most likely token. By default, 0.
      repetition_penalty: Factor that lowers the logits of tokens that the text already has (Keskar
        et al. 2019, arXiv:1909.05858). 1: no penalty.
      beams: Width of the beam search. 1: no beam search.
      length_penalty: Length penalty of the beam search. Values above 1 favor longer answers.
      samples: Number of answers to each text: samples, or the best beams.
      stop_strings: Texts that end an answer. The answer ends before the first of them.
      seed: Seed of sampling.
      batch_size: Number of rows of a batch.
      own_drafts: Whether the model drafts for itself in speculative decoding, with its heads for
        tokens ahead or with masks.
    """

    max_new: Count = 64
    temperature: NonNegative = 0.0
    top_k: Count | None = None
    top_p: PositiveShare | None = None
    min_p: Share | None = None
    repetition_penalty: Positive = 1.0
    beams: Count = 1
    length_penalty: float = 1.0
    samples: Count = 1
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    batch_size: Count = 32
    own_drafts: bool = False

    def __post_init__(self):
        check_fields(self)
        if self.beams > 1 and (self.sampling != Sampling() or self.own_drafts):
            raise ValueError(
                f"Got beams={self.beams} with sampling, a penalty or drafts, which beam search "
                "does not support: set beams=1, or leave them out."
            )
        if self.samples > 1 and self.beams == 1 and not self.temperature:
            raise ValueError(
                f"Got samples={self.samples} with temperature=0, which gives the same answer "
                "each time: set a temperature, or beams."
            )
        if 1 < self.beams < self.samples:
            raise ValueError(
                f"Got samples={self.samples}, expected at most the {self.beams} beams: set more "
                "beams."
            )

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            self.repetition_penalty, self.temperature, self.top_k, self.top_p, self.min_p
        )


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a mode, the same for all items.

        Options(decoding=Decoding(temperature=1.0), order="gibbs", steps=20)

    Raises:
      ValueError: A value is out of range.

    Attributes:
      decoding: Decoding settings, for modes that write text.
      draft: Smaller model for speculative decoding. None: no drafts.
      denoiser: Mode token before the text, such as UL2's "R". None: the default of the prompt form.
      top: Number of guesses for each mask or next token, or of classes for each text.
      steps: Number of steps of unmasking, for each text or block. None: one step for each mask, or
        32 for a flow.
      order: Order of unmasking (`inference.unmask`).
      pooling: How to pool hidden states into an embedding. None: as in training.
      second: Whether two towers embed texts as the second text of a pair.
      mode_options: Values of the mode's additional options, `Mode.arguments`.
      numbers: Numbers of the items, for their random keys and for error messages. None: 0, 1, …,
        and messages do not name items.
      on_text: Function that is called with the partial answer of a single item.
      on_batch: Function that is called with the number of items answered.
      on_drafts: Function that is called with the counts of drafts.
    """

    decoding: Decoding = Decoding()
    draft: Draft | None = None
    denoiser: str | None = None
    top: int = 5
    steps: Count | None = None
    order: Order = "confidence"
    pooling: Pooling | None = None
    second: bool = False
    mode_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    numbers: Sequence[int] | None = None
    on_text: Callable[[str], None] | None = None
    on_batch: Callable[[int], None] | None = None
    on_drafts: Callable[[DraftCounts], None] | None = None

    def __post_init__(self):
        check_fields(self)

    @property
    def batching(self) -> Batching:
        return Batching(self.decoding.batch_size, self.on_batch, self.numbers)


DEFAULT_OPTIONS = Options()


def check_single_draw(options: Options) -> None:
    """Raises ValueError for settings of decoding that only text from left to right supports."""
    decoding = options.decoding
    if decoding != dataclasses.replace(
        Decoding(max_new=decoding.max_new, batch_size=decoding.batch_size, seed=decoding.seed),
        temperature=decoding.temperature,
    ):
        raise ValueError(
            "Got a filter, a penalty, beams, samples, stops or drafts, expected none: this mode "
            "supports only a temperature."
        )
