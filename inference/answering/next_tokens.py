"""The distribution of the token after a text.

Letters: B rows, P slots, V ids, N tokens shown.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ..decoding.batching import jitted
from ..decoding.decoding import Prompts, next_logits
from ..prompting.prompts import batch_prompts, decode_after, prompt_size, prompts_width, text_prompt
from ..prompting.windows import check_prompts
from ..trained import Trained, allowed_token_mask, writing_mode
from .masks import Guess
from .options import DEFAULT_OPTIONS, Options


def next_tokens(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[list[Guess]]:
    """Returns the `options.top` most likely tokens after each text, with their probabilities.

        next_tokens(trained, ["def f(x):", "import"], Options(top=3))
        # [[Guess("\\n", 202, 0.81), …], [Guess(" os", 4219, 0.07), …]]

    A text is read as in training: from left to right, or both ways if the model was trained to
    complete or answer texts, where the next token starts the answer. Do not end a text with a
    space, since the space belongs to the next token.

    Raises ValueError if a text has blanks or is longer than the model's positions.
    """
    model = trained.model
    mode = writing_mode(trained)
    prompts = [text_prompt(trained, mode, text) for text in texts]
    check_prompts(trained, prompts, 0)
    run = jitted(_top_tokens, model, min(options.top, trained.ids.size))
    allowed_V = allowed_token_mask(trained.ids, model.vocab_size)

    def guesses(chosen: list[int]) -> Iterator[list[Guess]]:
        rows = [prompts[i] for i in chosen]
        batch = batch_prompts(model.layout, rows, trained.ids, prompts_width(model, rows))
        p_BxN, ids_BxN = jax.device_get(run(trained.params, batch, allowed_V))
        for prompt, p_N, ids_N in zip(rows, p_BxN.tolist(), ids_BxN.tolist()):
            yield [
                Guess(decode_after(trained, prompt.before, [i]), i, p) for i, p in zip(ids_N, p_N)
            ]

    sizes = [prompt_size(model.layout, prompt) for prompt in prompts]
    return options.batching.run(guesses, sizes)


def _top_tokens(model, top, params, prompts: Prompts, allowed_V):
    """Returns (probabilities f32[B, N], ids i32[B, N]) of the tokens after each prompt."""
    outputs = model.apply(params, prompts.batch)
    last_BxE = outputs.hidden["top"][jnp.arange(prompts.lengths.shape[0]), prompts.lengths - 1]
    return lax.top_k(jax.nn.softmax(next_logits(outputs, last_BxE, allowed_V), -1), top)
