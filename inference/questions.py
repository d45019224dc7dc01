"""From a text to a prompt, in the very form that the model was trained on.

A text becomes a `Question`: what the model reads, and what its answer begins with; which ids stand
around the text is said by `objectives.Prompt`. `prompts_of` arranges questions for an
encoder-decoder, or joins them for a decoder, as `objectives.layouts` does.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pretrax.inference.decoding import Prompts, decoder_prompts, encoder_decoder_prompts
from pretrax.inference.trained import Trained, prompt_for
from pretrax.objectives import Prompt, TokenIds

BLANK = re.compile(r"<extra_id_(\d+)>")
FEW = 8  # tokens before an answer, enough to tell how its first one is written


class Question(NamedTuple):
    inputs: list[int]  # what is read, seen both ways; none of a causal model
    start: list[int]  # what the answer begins with, after bos
    blanks: list[int] = []  # of bos and of the start: places of the inputs that they fill (GLM)
    before: list[int] = []  # the last tokens of a text that the answer goes on with

    @property
    def size(self) -> int:
        return len(self.inputs) + len(self.start)


def prompts_of(
    layout: str, questions: Sequence[Question], ids: TokenIds, width: int | None = None
) -> Prompts:
    """Questions in one batch; `width` is that of what is longest, the encoder's rows or the decoder's.

    Raises ValueError for a causal question to an encoder-decoder, which reads before it writes.
    """
    if layout == "encoder_decoder":
        if not all(question.inputs for question in questions):
            raise ValueError(
                "Got a text without anything to read, expected some: an encoder-decoder reads "
                "before it writes."
            )
        starts = [[ids.bos, *question.start] for question in questions]
        return encoder_decoder_prompts([q.inputs for q in questions], starts, width)
    rows = [[*question.inputs, ids.bos, *question.start] for question in questions]
    blanks = [question.blanks for question in questions]
    prefixes = [len(question.inputs) for question in questions]
    return decoder_prompts(rows, prefixes, width, blanks if any(blanks) else None)


def prompt_size(layout: str, question: Question) -> int:
    """Places that a question takes in the longer of its stacks."""
    if layout == "encoder_decoder":
        return max(len(question.inputs), len(question.start) + 1)
    return question.size + 1


def to_question(trained: Trained, mode: str, text: str, denoiser: str | None = None) -> Question:
    """A text that the model goes on from, or reads and answers, as `mode` has it.

    Args:
      denoiser: name of a mode token before the text, in place of what the prompt has there.
    """
    prompt = _with_denoiser(trained, prompt_for(trained, mode), denoiser)
    if mode != "continue":  # of a causal model nothing at all may be the prompt
        _check_words(text)
    return _written(prompt, trained.encode(text))


def _with_denoiser(trained: Trained, prompt: Prompt, denoiser: str | None) -> Prompt:
    return prompt if denoiser is None else prompt._replace(before=(trained.ids.mode(denoiser),))


def _written(prompt: Prompt, tokens: list[int]) -> Question:
    """The text's tokens with those that the prompt has around it."""
    around = [*prompt.before, *tokens, *prompt.after]
    if not prompt.causal:
        return Question(around, [*prompt.start])
    return Question([], around, before=tokens[-FEW:] if around == tokens else [])


def to_infill(trained: Trained, text: str, denoiser: str | None = None) -> Question:
    """A text with blanks; the answer tells what they hide: all of them, or the first (`next_blank`).

    A text without a blank is completed by a model that was trained to complete as well, such as
    UL2's; for any other it gets a blank at its end.

    Raises ValueError where blanks are not numbered 0, 1, …, or the vocabulary has too few of them.
    """
    _check_words(text)
    sentinels = trained.ids.sentinels
    numbers = [int(x) for x in BLANK.findall(text)]
    if numbers != list(range(len(numbers))):
        raise ValueError(
            f"Got blanks {', '.join(f'<extra_id_{x}>' for x in numbers)}, expected <extra_id_0>, "
            "<extra_id_1> and so on, each once and in that order."
        )
    if len(numbers) > len(sentinels):
        raise ValueError(
            f"Got {len(numbers)} blanks, expected at most {len(sentinels)}: this vocabulary has no "
            "more sentinels."
        )
    if not numbers and denoiser is None and completes(trained):
        return to_question(trained, "complete", text)
    if not numbers:
        text += "<extra_id_0>"
    prompt = _with_denoiser(trained, prompt_for(trained, "infill"), denoiser)
    tokens = trained.encode(text)
    if prompt.blanks == "in turn":
        return Question([], [*prompt.before, *tokens, sentinels[0]])
    if prompt.blanks == "masks":
        mask = trained.ids.special("mask")
        inputs = [mask if token in sentinels else token for token in tokens]
        return Question(inputs, [], [inputs.index(mask)])
    return _written(prompt, tokens)


def completes(trained: Trained) -> bool:
    """Whether the model was trained to complete a text that it reads both ways."""
    return any(prompt.mode == "complete" for prompt in trained.prompts)


def next_blank(trained: Trained, question: Question, number: int, written: list[int]) -> Question:
    """The question for blank `number`, when the one before it was filled with the tokens `written`.

    Of a model that fills each blank by itself: its prompt's `blanks` are not "together".
    """
    ids, start = trained.ids, [*question.start, *written, trained.ids.eos]
    if not question.blanks:
        return Question([], [*start, ids.sentinels[number]])
    masks = [place for place, token in enumerate(question.inputs) if token == ids.mask]
    before = question.blanks[-1]
    blanks = [*question.blanks, *[before] * len(written), masks[number]]
    return Question(question.inputs, start, blanks)


def to_fill_the_middle(trained: Trained, prefix: str, suffix: str) -> Question:
    """Fill-in-the-middle in the order prefix, suffix, middle; the answer is the middle."""
    if len(trained.ids.fim) != 3:
        raise ValueError(
            "The vocabulary has no markers for prefix, suffix and middle: use a model that "
            "fill_in_the_middle trained."
        )
    if not prefix and not suffix:
        raise ValueError("Got neither a prefix nor a suffix, expected text in one of them.")
    before, after, middle = trained.ids.fim
    first, last = trained.encode(prefix), trained.encode(suffix)
    return Question([], [before, *first, after, *last, middle], before=first[-FEW:])


def filled(text: str, answer: str) -> tuple[str, list[str]]:
    """(text with its blanks filled, what fills each of them) from an answer that names the blanks.

    filled("a <extra_id_0> c", "<extra_id_0>b<extra_id_1>")    # ("a b c", ["b"])

    A text without a blank is followed by the answer.
    """
    if not BLANK.search(text):
        text += "<extra_id_0>"
        answer = answer if BLANK.search(answer) else f"<extra_id_0>{answer}"
    parts = BLANK.split(answer)
    told = dict(zip(parts[1::2], parts[2::2]))
    pieces = [told.get(number, "") for number in BLANK.findall(text)]
    whole = BLANK.sub(lambda match: told.get(match[1], ""), text)
    return whole, pieces


def few_shot_prompt(
    template: str, examples: Sequence[dict], item: dict, answer: str, separator: str = "\n\n"
) -> str:
    """Examples written out by a template, and after them the item up to where its answer would stand.

        few_shot_prompt("Q: {q}\\nA: {a}", [{"q": "1+1", "a": "2"}], {"q": "2+2"}, "a")
        # "Q: 1+1\\nA: 2\\n\\nQ: 2+2\\nA:"

    Raises ValueError for a template without the answer's field, and for an example or item that
    lacks a field of the template.
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
                f"Got an item with the fields {', '.join(fields) or 'none'}, expected {error} as "
                "well, which the template names."
            ) from error

    shown = [written(template, example) for example in examples]
    question = written(template[: template.index(f"{{{answer}}}")], item)
    # Without the space before the answer, which belongs to the answer's first token.
    return separator.join([*shown, question.rstrip(" ")])


def _check_words(text: str) -> None:
    if not text.strip():
        raise ValueError("Got an empty text, expected some words.")
