"""Prompts: texts in the form that the model was trained on (`objectives.PromptForm`).

`batch_prompts` arranges prompts for an encoder-decoder or a decoder, as in `objectives.layouts`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...objectives import PromptForm, TokenIds
from ..decoding.batching import padded_length
from ..decoding.decoding import Prompts, decoder_prompts, encoder_decoder_prompts
from ..trained import MODES, Trained, mode_of, prompt_form

BLANK = re.compile(r"<extra_id_(\d+)>")
CONTEXT = 8  # number of last tokens of a text that affect the decoding of the first new token


class Prompt(NamedTuple):
    """Token ids that a model reads both ways, and token ids that it continues."""

    inputs: list[int]  # ids read both ways by the encoder or a prefix LM; [] if causal
    start: list[int]  # first ids of the answer, after bos
    blanks: list[int] = []  # for bos and each id of the start: index of the input it fills (GLM)
    before: list[int] = []  # last tokens of a text that the answer continues

    @property
    def size(self) -> int:
        return len(self.inputs) + len(self.start)


def batch_prompts(
    layout: str,
    prompts: Sequence[Prompt],
    ids: TokenIds,
    width: int | None = None,
    start_width: int | None = None,
) -> Prompts:
    """Returns the prompts as one batch.

    Args:
      width: number of slots of the padded rows of the encoder, or of a decoder-only model.
      start_width: number of slots of the padded rows of an encoder-decoder's decoder.

    Raises ValueError if the model is an encoder-decoder and a prompt has no inputs.
    """
    if layout == "encoder_decoder":
        if not all(prompt.inputs for prompt in prompts):
            raise ValueError(
                "Got a text without tokens, expected at least one token: an encoder-decoder needs "
                "an input."
            )
        starts = [[ids.bos, *prompt.start] for prompt in prompts]
        inputs = [prompt.inputs for prompt in prompts]
        return encoder_decoder_prompts(inputs, starts, width, start_width)
    rows = [[*prompt.inputs, ids.bos, *prompt.start] for prompt in prompts]
    blanks = [prompt.blanks for prompt in prompts]
    prefixes = [len(prompt.inputs) for prompt in prompts]
    return decoder_prompts(rows, prefixes, width, blanks if any(blanks) else None)


def prompt_size(layout: str, prompt: Prompt) -> int:
    """Returns the number of slots of a prompt, in the longer of its stacks."""
    if layout == "encoder_decoder":
        return max(len(prompt.inputs), len(prompt.start) + 1)
    return prompt.size + 1


def prompts_width(model, prompts: Sequence[Prompt], max_new: int = 0) -> int:
    """Returns the number of slots to pad prompts to, within the model's positions.

    There are only a few widths, so that batches share compiled programs.
    """
    both_ways = model.layout == "encoder_decoder"
    longest = max(len(p.inputs) if both_ways else prompt_size(model.layout, p) for p in prompts)
    limit = model.max_positions
    if limit and model.layout == "decoder":
        limit = max(limit - max_new, 1)
    return padded_length(longest, limit)


def starts_width(model, prompts: Sequence[Prompt]) -> int:
    """Returns the number of slots to pad the starts of an encoder-decoder's prompts to."""
    return padded_length(max(len(p.start) for p in prompts) + 1, model.max_positions)


def text_prompt(trained: Trained, mode: str, text: str, denoiser: str | None = None) -> Prompt:
    """Returns the prompt for a text that the model continues or answers.

    Args:
      denoiser: name of a mode token to put before the text, instead of the ids of the prompt form.

    Raises ValueError if the text is empty (unless the mode is "continue"), or if a text to be
    continued has blanks.
    """
    if mode != "continue":  # a causal model can start from nothing
        check_words(text)
    if mode in ("continue", "complete"):
        _check_no_blanks(trained, mode, text)
    return _in_form(_with_denoiser(trained, mode, denoiser), trained.encode(text))


def _with_denoiser(trained: Trained, mode: str, denoiser: str | None) -> PromptForm:
    form = prompt_form(trained, mode)
    if denoiser is None:
        return form
    known = dict(trained.ids.modes)
    if denoiser not in known:
        if not known:
            raise ValueError(
                f"Got denoiser {denoiser!r}, but the vocabulary of the model has no mode tokens: "
                "leave the denoiser out (--denoiser)."
            )
        raise ValueError(f"Got denoiser {denoiser!r}, expected one of {', '.join(known)}.")
    return form._replace(before=(known[denoiser],))


def _in_form(form: PromptForm, tokens: list[int]) -> Prompt:
    whole = [*form.before, *tokens, *form.after]
    if not form.causal:
        return Prompt(whole, [*form.start])
    return Prompt([], whole, before=[] if form.after else tokens[-CONTEXT:])


def text_frame(trained: Trained) -> tuple[list[int], list[int]]:
    """Returns the ids before and after a text that the model reads or continues.

    They are ([bos], []) for a causal language model, and ([], [eos]) for T5, without mode tokens.
    """
    form = prompt_form(trained, mode_of(trained))
    modes = {i for _, i in trained.ids.modes}
    before = [i for i in form.before if i not in modes]
    after = [*form.after]
    if trained.model.layout != "decoder" or reads_only_frame(form):
        return before, after
    if form.causal:
        return [trained.ids.bos, *before], after
    return before, [*after, trained.ids.bos, *form.start]


def reads_only_frame(form: PromptForm) -> bool:
    """Returns whether a decoder reads the framed text without the start of an answer."""
    return form.mode in MODES and MODES[form.mode].reads_only_frame


def infill_prompt(trained: Trained, text: str, denoiser: str | None = None) -> Prompt:
    """Returns the prompt for a text with blanks.

    Some models fill all blanks in one answer. For others, this is the prompt for the first blank,
    and `next_blank` returns the next prompts. A text without a blank is completed by a model that
    was also trained to complete texts, such as UL2. For others, a blank is added at its end.

    Raises ValueError if the blanks are not numbered 0, 1, …, or if the vocabulary has too few
    sentinels.
    """
    check_words(text)
    sentinels = trained.ids.sentinels
    numbers = [int(x) for x in BLANK.findall(text)]
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"Got blanks {', '.join(f'<extra_id_{x}>' for x in numbers)}, expected <extra_id_0>, "
            "<extra_id_1> and so on, each once and in that order."
        )
    if len(numbers) > len(sentinels):
        raise ValueError(
            f"Got {len(numbers)} blanks, expected at most {len(sentinels)}: the vocabulary has no "
            "more sentinels."
        )
    if not numbers and denoiser is None and can_complete(trained):
        return text_prompt(trained, "complete", text)
    if not numbers:
        text += "<extra_id_0>"
    form = _with_denoiser(trained, "infill", denoiser)
    tokens = trained.encode(text)
    if form.blanks == "masks":
        mask = trained.ids.special("mask")
        inputs = [mask if token in sentinels else token for token in tokens]
        return Prompt(inputs, [], [inputs.index(mask)])
    if form.blanks == "in turn":
        form = form._replace(after=(sentinels[0],))
    return _in_form(form, tokens)


def can_complete(trained: Trained) -> bool:
    """Returns whether the model was trained to complete texts that it reads both ways."""
    return any(form.mode == "complete" for form in trained.prompt_forms)


def next_blank(trained: Trained, prompt: Prompt, number: int, written: list[int]) -> Prompt:
    """Returns the prompt for blank `number`, after the previous blank was filled with `written`.

    This is for models that fill each blank separately: their form's `blanks` is not "together".
    """
    ids = trained.ids
    start = [*prompt.start, *written, trained.ids.eos]
    if not prompt.blanks:
        return Prompt([], [*start, ids.sentinels[number]])
    masks = [index for index, token in enumerate(prompt.inputs) if token == ids.mask]
    before = prompt.blanks[-1]
    blanks = [*prompt.blanks, *[before] * len(written), masks[number]]
    return Prompt(prompt.inputs, start, blanks)


def middle_prompt(trained: Trained, prefix: str, suffix: str) -> Prompt:
    """Returns the prompt with the prefix, then the suffix. The answer is the middle.

    Raises ValueError if both texts are empty, one has blanks, or the vocabulary has no markers.
    """
    if BLANK.search(prefix + suffix):
        raise ValueError(
            "Got blanks in the prefix or the suffix, expected none, since the model fills the gap "
            "between them: end the prefix at the gap."
        )
    if len(trained.ids.fim) != 3:
        raise ValueError(
            "The vocabulary has no markers for prefix, suffix and middle: use a model that "
            "fill_in_the_middle trained."
        )
    if not prefix and not suffix:
        raise ValueError("Got neither a prefix nor a suffix, expected text in one of them.")
    before, after, middle = trained.ids.fim
    first = trained.encode(prefix)
    last = trained.encode(suffix)
    return Prompt([], [before, *first, after, *last, middle], before=first[-CONTEXT:])


def fill_blanks(text: str, answer: str) -> tuple[str, list[str]]:
    """Returns (the text with its blanks filled, the text of each blank), given an answer.

    fill_blanks("a <extra_id_0> c", "<extra_id_0>b<extra_id_1>")    # ("a b c", ["b"])

    If the text has no blank, the answer is added at its end.
    """
    if not BLANK.search(text):
        text += "<extra_id_0>"
        answer = answer if BLANK.search(answer) else f"<extra_id_0>{answer}"
    parts = BLANK.split(answer)
    fills = dict(zip(parts[1::2], parts[2::2]))
    pieces = [fills.get(number, "") for number in BLANK.findall(text)]
    whole = BLANK.sub(lambda match: fills.get(match[1], ""), text)
    return whole, pieces


def few_shot_prompt(template: str, examples: Sequence[dict], item: dict, answer: str) -> str:
    """Fills a template with the examples, and then with the item up to its answer.

        few_shot_prompt("Q: {q}\\nA: {a}", [{"q": "1+1", "a": "2"}], {"q": "2+2"}, "a")
        # "Q: 1+1\\nA: 2\\n\\nQ: 2+2\\nA:"

    Raises ValueError if the template lacks the answer's field, or if an example or the item lacks a
    field of the template.
    """
    if f"{{{answer}}}" not in template:
        raise ValueError(
            f"Got a template without {{{answer}}}, the field of the answer: {template!r}."
        )

    def written(form: str, fields: dict) -> str:
        try:
            return form.format(**fields)
        except IndexError as error:
            raise ValueError(
                f"Got the template {template!r}, expected fields by name, such as {{text}}."
            ) from error
        except KeyError as error:
            raise ValueError(
                f"Got an item with the fields {', '.join(fields) or 'none'}, expected {error}, as "
                "in the template."
            ) from error

    shown = [written(template, example) for example in examples]
    last = written(template[: template.index(f"{{{answer}}}")], item)
    # The space before the answer is left out, since it belongs to the answer's first token.
    return "\n\n".join([*shown, last.rstrip(" ")])


def decode_after(trained: Trained, before: list[int], tokens: list[int]) -> str:
    """Returns the text of tokens after other tokens, with the space before a first word."""
    context = trained.decode(before)
    whole = trained.decode([*before, *tokens])
    return whole[len(context) :] if whole.startswith(context) else trained.decode(tokens)


def _check_no_blanks(trained: Trained, mode: str, text: str) -> None:
    if not BLANK.search(text):
        return
    modes = {form.mode for form in trained.prompt_forms}
    never = (
        "use a model that span_corruption or ul2 trained, since this model cannot; for example "
        f"`pretrax predict --run=runs/quickstart {text!r}` after `pretrax train`"
    )
    ways = (mode.blanks for name, mode in MODES.items() if name in modes)
    advice = next(filter(None, ways), never)
    raise ValueError(
        f"Got a text with blanks, {text!r}, in mode {mode!r}, which continues texts. To continue "
        f"the text, leave out the blanks. To fill the blanks, {advice}."
    )


def check_words(*texts: str) -> None:
    if without := [text for text in texts if not text.strip()]:
        raise ValueError(f"Got the text {without[0]!r}, expected some words.")
