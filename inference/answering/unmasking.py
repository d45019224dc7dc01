"""Unmasking: fills all masks of a text, in an order and a number of steps.

Letters: B rows, T slots, K masks of a row, V ids.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...objectives import PromptForm, TokenIds
from ...objectives.contract import Array
from ..decoding.batching import jitted, padded_length
from ..decoding.sampling import NEVER, most_likely
from ..prompting.prompts import decode_after
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form
from .ancestral import mask_noise, posterior_weights
from .masks import Masked, batch_of, mask_logits, masked_text
from .options import DEFAULT_OPTIONS, Options, Order, check_single_draw

FillingMode = Literal["unmask", "denoise"]
REWRITING = ("mask_predict", "gibbs")  # orders that may overwrite written tokens


def unmask(
    trained: Trained,
    texts: Sequence[str],
    options: Options = DEFAULT_OPTIONS,
    *,
    mode: FillingMode = "unmask",
) -> list[str]:
    """Returns the texts with all masks filled. Other tokens do not change.

        unmask(trained, ["import [MASK], [MASK]"], Options(order="mask_predict", steps=4))
        unmask(trained, ["import [MASK], [MASK]"], Options(steps=32), mode="denoise")

    The first five orders write each mask once. The other orders may overwrite written tokens:

        confidence      a step writes an equal share of the masks, the most confident predictions
                        first (Chang et al. 2022, arXiv:2202.04200; LLaDA's low-confidence
                        remasking)
        margin          the same, predictions with the largest margin between the two most likely
                        tokens first (Kim et al. 2025, arXiv:2502.06768)
        entropy         the same, predictions with the least entropy first (Ye et al. 2025, Dream,
                        arXiv:2508.15487)
        left_to_right   the same, from left to right
        random          the same, in a random order: with temperature 1 and many steps, a sample of
                        the masked diffusion model
        mask_predict    the first step writes all masks; each later step masks the least probable
                        tokens, linearly fewer, and writes them again given the others
                        (Ghazvininejad et al. 2019, arXiv:1904.09324)
        ancestral       a step goes back by an equal part of the diffusion time, and writes a random
                        number of masks that follows the noise schedule. A `hybrid_diffusion` model
                        may also overwrite tokens that may be noise. With temperature 1 and many
                        steps, the text is a sample of the model (von Rütte et al. 2025,
                        arXiv:2503.04482). With temperature 0, predictions are greedy
        gibbs           a step visits all masks in a random order. It masks and draws one token at a
                        time given the others, with a call of the model each (Wang and Cho 2019,
                        arXiv:1902.04094)

    Args:
      texts: texts with "[MASK]".
      options: the order, the number of steps, the temperature and the seed.
      mode: "denoise" for a model trained on random tokens. Each mask starts as a random token, and
        a step may overwrite any of them, in the order "ancestral" (Sahoo et al. 2025,
        arXiv:2506.10892).

    Raises:
      ValueError: A text has no mask, the order is "gibbs" with temperature 0, or the options have
        other settings of sampling than a temperature.
    """
    prompt = prompt_form(trained, mode)
    masked_texts = [masked_text(trained, text, prompt) for text in texts]
    written_tokens = write_masks(trained, prompt, masked_texts, options)
    answers = []
    for row, written_K in zip(masked_texts, written_tokens):
        tokens = np.array(row.tokens)
        tokens[row.masks] = written_K
        last = len(row.tokens) - len(prompt.after)
        answers.append(trained.decode(tokens[len(prompt.before) : last].tolist()))
    return answers


def write_masks(
    trained: Trained,
    prompt: PromptForm,
    rows: Sequence[Masked],
    options: Options = DEFAULT_OPTIONS,
    *,
    record: int = 0,
) -> list[list]:
    """Returns the tokens that fill the masks of each row, as a list of K ids.

    Args:
      prompt: prompt form of the rows, of a `FillingMode`.
      record: number of model calls after each of which the K ids are returned, as a list of lists.
        0: only the last ids.
    """
    writing = mask_writing(trained, prompt, options, record)
    check_texts(trained, [row.tokens for row in rows])
    decoding = options.decoding
    batching = options.batching
    run = jitted(_unmask, trained.model, writing)
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())

    def filled(chosen: list[int]) -> Iterator[list]:
        batch_rows = [rows[i] for i in chosen]
        batch = batch_of(trained, [row.tokens for row in batch_rows])
        total_B = np.array([len(row.masks) for row in batch_rows], np.int32)
        slots_BxK = np.zeros((len(batch_rows), padded_length(int(total_B.max()))), np.int32)
        for slots_K, row in zip(slots_BxK, batch_rows):
            slots_K[: len(row.masks)] = row.masks
        masks = MaskSlots(
            slots_BxK,
            np.arange(slots_BxK.shape[1])[None] < total_B[:, None],
            np.full_like(total_B, options.steps) if options.steps else total_B,
            batching.keys(decoding.seed, chosen),
        )
        tokens_BxK = np.asarray(run(trained.params, batch, masks, allowed_V, decoding.temperature))
        by_row = np.moveaxis(tokens_BxK, 1, 0) if record else tokens_BxK
        for total, tokens in zip(total_B, by_row):
            yield tokens[..., :total].tolist()

    return batching.run(filled, [len(row.tokens) for row in rows])


class MaskSteps(NamedTuple):
    """A text while its masks are filled.

    Attributes:
      tokens: text of each token of the row, with the mask's name for masks.
      masks: indices of the masks in `tokens`.
      steps: text of each mask after each step; None for a mask that is not filled yet.
    """

    tokens: list[str]
    masks: list[int]
    steps: list[list[str | None]]


def unmasking_steps(trained: Trained, text: str, options: Options = DEFAULT_OPTIONS) -> MaskSteps:
    """Returns the masks of a text after each step of `unmask`.

    unmasking_steps(trained, "import [MASK], [MASK]").steps
    # [[None, "sys"], ["os", "sys"]]
    """
    prompt = prompt_form(trained, "unmask")
    row = masked_text(trained, text, prompt)
    visits = len(row.masks) if options.order == "gibbs" else 1
    calls = (options.steps or len(row.masks)) * visits
    (history,) = write_masks(trained, prompt, [row], options, record=calls)
    ids = trained.ids

    def spelled(token: int) -> str:
        return decode_after(trained, row.tokens[:1], [token])

    return MaskSteps(
        [spelled(token) for token in row.tokens],
        row.masks,
        [[None if x == ids.mask else spelled(x) for x in step] for step in history],
    )


class MaskSlots(NamedTuple):
    """The masks of a batch of rows."""

    slots: Any  # i32[B, K]: slots of the masks, which seed their random keys
    is_mask: Any  # bool[B, K]: True for masks, which come first, and False for padding
    steps: Any  # i32[B]: number of steps of each row
    keys: Any  # a random key for each row

    @property
    def total(self):
        return jnp.sum(self.is_mask, 1)


class MaskWriting(NamedTuple):
    """The static settings of a compiled unmasking."""

    form: PromptForm  # in the mode "denoise", masks start as random text and the order is ancestral
    ids: TokenIds
    order: Order
    sampled: bool  # whether tokens are sampled instead of the most likely ones
    record: int = 0  # number of calls whose tokens are returned; 0: only the last


def mask_writing(
    trained: Trained, form: PromptForm, options: Options, record: int = 0
) -> MaskWriting:
    """Returns the static settings of an unmasking. Raises ValueError for unsupported options."""
    check_single_draw(options)
    sampled = bool(options.decoding.temperature)
    if options.order == "gibbs" and not sampled:
        raise ValueError(
            "Got order='gibbs' with temperature=0, expected a temperature above 0, such as 1, "
            "since this order samples every token."
        )
    return MaskWriting(form, trained.ids, options.order, sampled, record)


def _unmask(model, writing: MaskWriting, params, batch, masks: MaskSlots, allowed_V, temperature):
    """Returns the tokens i32[B, K] that fill the masks."""
    name = f"{'decoder' if model.layout == 'decoder' else 'encoder'}_input_tokens"
    input_BxT = jnp.asarray(batch[name])
    rows_Bx1 = jnp.arange(masks.slots.shape[0])[:, None]
    # Padding has a slot beyond the row, so that its token is dropped.
    slots_BxK = jnp.where(masks.is_mask, masks.slots, input_BxT.shape[1])

    def logits_of(tokens_BxK):
        filled_BxT = input_BxT.at[rows_Bx1, slots_BxK].set(tokens_BxK, mode="drop")
        filled = batch | {name: filled_BxT}
        return mask_logits(model, writing.form, writing.ids, params, filled, masks.slots)

    return written_tokens(logits_of, masks, writing, temperature, allowed_V)


def written_tokens(
    logits_of: Callable,
    masks: MaskSlots,
    writing: MaskWriting,
    temperature: float,
    allowed_V: Array,
):
    """Returns the tokens i32[B, K] that fill masks, in an order of `unmask`.

    If `writing.record` is not 0, returns the tokens after each call, i32[record, B, K].

    Args:
      logits_of: function from the current tokens i32[B, K] of the masks to their logits f32[B, K,
        V].
    """
    order = writing.order
    mask = writing.ids.special("mask")

    def allowed_logits(tokens_BxK):
        return jnp.where(allowed_V, logits_of(tokens_BxK), NEVER)

    if order == "ancestral" or writing.form.mode == "denoise":
        return _ancestral(allowed_logits, masks, writing, temperature)
    total_B = masks.total
    calls_B = masks.steps * total_B if order == "gibbs" else masks.steps

    def predicted(s, tokens_BxK):
        """Returns for each mask a token, its probability and its priority, each [B, K]."""
        logits = allowed_logits(tokens_BxK)
        if writing.sampled:
            logits = logits / temperature
            keys_BxK = _slot_keys(masks, s, DRAW)
            chosen_BxK = jax.vmap(jax.vmap(jax.random.categorical))(keys_BxK, logits)
        else:
            chosen_BxK = most_likely(logits)
        p_BxKxV = jax.nn.softmax(logits, -1)
        p_BxK = jnp.take_along_axis(p_BxKxV, chosen_BxK[..., None], -1)[..., 0]
        # mask_predict and gibbs choose masks without a priority.
        priority = PRIORITIES.get(order, PRIORITIES["confidence"])
        return chosen_BxK, p_BxK, priority(masks, s, p_BxKxV, p_BxK)

    def call(s, carry):
        tokens_BxK, p_BxK = carry
        if order == "mask_predict":
            # The first step fills all masks, later steps the least probable, linearly fewer.
            count_B = total_B * (masks.steps - s) // masks.steps
            now_BxK = masks.is_mask & (_rank(p_BxK, masks.is_mask) < count_B[:, None])
        elif order == "gibbs":
            # A call fills a single mask. Random numbers order the masks of a step.
            visit_BxK = _rank(_random(masks, s // total_B), masks.is_mask)
            now_BxK = masks.is_mask & (visit_BxK == (s % total_B)[:, None])
            now_BxK &= (s < calls_B)[:, None]
        else:
            now_BxK = masks.is_mask & (tokens_BxK == mask)
        tokens_BxK = jnp.where(now_BxK, mask, tokens_BxK)
        chosen_BxK, chosen_p_BxK, priority_BxK = predicted(s, tokens_BxK)
        if order not in REWRITING:  # all masks are spread over the steps as evenly as possible
            count_B = total_B * (s + 1) // masks.steps - total_B * s // masks.steps
            now_BxK = now_BxK & (_rank(-priority_BxK, now_BxK) < count_B[:, None])
        tokens_BxK = jnp.where(now_BxK, chosen_BxK, tokens_BxK).astype(jnp.int32)
        return tokens_BxK, jnp.where(now_BxK, chosen_p_BxK, p_BxK)

    shape = masks.slots.shape
    start = jnp.full(shape, mask, jnp.int32), jnp.zeros(shape, jnp.float32)
    return _repeated(jnp.max(calls_B), call, start, writing.record)


def _repeated(calls, call: Callable, start: tuple, record: int):
    """Returns the first array of the state after all calls, or after each of `record` calls."""
    if not record:
        return lax.fori_loop(0, calls, call, start)[0]

    def recorded(s, both):
        state, history = both
        state = call(s, state)
        return state, history.at[s].set(state[0])

    history = jnp.zeros((record, *start[0].shape), start[0].dtype)
    return lax.fori_loop(0, calls, recorded, (start, history))[1]


def _ancestral(logits_of, masks: MaskSlots, writing: MaskWriting, temperature):
    """Returns the tokens i32[B, K] that fill masks in the order "ancestral"."""
    ids = writing.ids
    mask = ids.special("mask")
    noise = writing.form.noise or mask_noise

    def drawn(key, logits_V, token, time, earlier):
        if writing.sampled:
            p_V = jax.nn.softmax(logits_V / temperature)
        else:
            p_V = jax.nn.one_hot(most_likely(logits_V), logits_V.size)
        weights_V = posterior_weights(p_V, token, mask, ids.text, noise, time, earlier)
        # If no earlier id is possible, the token stays.
        earlier_token = jax.random.categorical(key, jnp.log(weights_V))
        return jnp.where(jnp.any(weights_V > 0), earlier_token, token)

    def step(s, state):
        (tokens_BxK,) = state
        time_B, earlier_B = (jnp.maximum(1 - n / masks.steps, 0.0) for n in (s, s + 1))
        keys_BxK = _slot_keys(masks, s, DRAW)
        draw_row = jax.vmap(drawn, in_axes=(0, 0, 0, None, None))
        logits = logits_of(tokens_BxK)
        drawn_BxK = jax.vmap(draw_row)(keys_BxK, logits, tokens_BxK, time_B, earlier_B)
        is_early = (s < masks.steps)[:, None]
        return (jnp.where(is_early, drawn_BxK, tokens_BxK).astype(jnp.int32),)

    start_BxK = jnp.full(masks.slots.shape, mask, jnp.int32)
    if writing.form.mode == "denoise":
        first, end = ids.text
        start_BxK = first + (_random(masks, 0) * (end - first)).astype(jnp.int32)
    return _repeated(jnp.max(masks.steps), step, (start_BxK,), writing.record)


def _margin(p_BxKxV):
    two_BxKx2 = lax.top_k(p_BxKxV, 2)[0]
    return two_BxKx2[..., 0] - two_BxKx2[..., 1]


# Order -> function (masks, call, probabilities of all ids, probabilities of the chosen ids) that
# returns the priorities f[B, K] of the masks. The highest priority is filled first.
PRIORITIES: dict[str, Callable] = {
    "confidence": lambda masks, call, p_BxKxV, p_BxK: p_BxK,
    "margin": lambda masks, call, p_BxKxV, p_BxK: _margin(p_BxKxV),
    "entropy": lambda masks, call, p_BxKxV, p_BxK: -jax.scipy.special.entr(p_BxKxV).sum(-1),
    "left_to_right": lambda masks, call, p_BxKxV, p_BxK: -masks.slots,
    "random": lambda masks, call, p_BxKxV, p_BxK: _random(masks, call),
}


# Each call splits the key of a row: one key draws tokens, one orders the masks.
DRAW = 0
ORDER = 1


def _slot_keys(masks: MaskSlots, call, use):
    """Returns a key for each slot, [B, K], independent of padding."""
    call_B = jnp.broadcast_to(call, masks.keys.shape)
    split = jax.vmap(lambda key, s: jax.random.split(jax.random.fold_in(key, s))[use])
    fold_in = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))
    return fold_in(split(masks.keys, call_B), masks.slots)


def _random(masks: MaskSlots, call):
    """Returns uniform random numbers f32[B, K], which order the masks of each row."""
    return jax.vmap(jax.vmap(jax.random.uniform))(_slot_keys(masks, call, ORDER))


def _rank(numbers_BxK, among_BxK):
    """Returns i32[B, K]: the rank of each number among the numbers of its row in `among_BxK`."""
    return jnp.argsort(jnp.argsort(jnp.where(among_BxK, numbers_BxK, jnp.inf), 1), 1)
