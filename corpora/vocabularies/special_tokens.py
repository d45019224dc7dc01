"""The special ids of a tokenizer, and conversion of text that has special tokens by name."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...data.corpus import Codec
from ...objectives import TokenIds, TokenTexts, bitmap, check_token_ids
from ...settings.atomic_writes import read_record
from .tokenization import FIM_NAMES, KNOWN_NAMES, Tokenizer, tokenizer_of

DEFAULT_SPECIALS = ("R", "S", "X", "mask", "cls", "sep", "fim")
SENTENCE_ENDS = tuple(".!?\n。！？")
DIGITS = tuple("0123456789")
SENTENCE_CLOSERS = " \t\r\"'”’»)]}」』）"


def token_ids(
    tokenizer: Tokenizer,
    *,
    sentinels: int = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> TokenIds:
    """Returns the special ids of `tokenizer`, found by name or appended above its own ids.

        token_ids(sentencepiece_tokenizer("t5.model"), sentinels=100)
        -> TokenIds(size=32109, text=(2, 32000), pad=0, eos=1, sentinels=(32099, …, 32000),
                    modes=(("R", 32100), ("S", 32101), ("X", 32102)), mask=32103, …)

    T5 has 100 sentinels, but UL2's (3, 0.5) denoiser needs 128 for 512 inputs. With 128 sentinels,
    the last 28 are appended to T5's vocabulary, with the ids 32100 … 32127. If a tokenizer has no
    sentinels, they get descending ids, as in SeqIO.

    Args:
        sentinels: number of sentinels, in the order of their use.
        specials: other special tokens: "mask", "cls", "sep", "fim" (three ids), and names of mode
            tokens ("R", "S", "X", or any other name, whose token is `[NAME]`).

    Raises ValueError if two special tokens share an id, or if too few ids are left for text.
    """
    named = tokenizer.named
    above = itertools.count(tokenizer.size)
    pad = tokenizer.pad if tokenizer.pad is not None else next(above)
    eos = tokenizer.eos if tokenizer.eos is not None else next(above)
    own_sentinels = _named_sentinels(named)[:sentinels]
    appended = list(itertools.islice(above, max(sentinels - len(own_sentinels), 0)))
    sentinel_ids = (*own_sentinels, *(appended if own_sentinels else reversed(appended)))

    known_names = _known_names(tokenizer)

    def resolve(key: str) -> int:
        names = known_names.get(key, (f"[{key}]", key))
        matching = [named[name] for name in names if name in named]
        return matching[0] if matching else next(above)

    single = {"mask", "cls", "sep"}
    modes = tuple((key, resolve(key)) for key in specials if key not in single | {"fim"})
    singles: dict[str, Any] = {key: resolve(key) for key in specials if key in single}
    fim: tuple[int, ...] = ()
    if "fim" in specials:
        matching = [names for names in FIM_NAMES if named.keys() >= set(names)]
        fim = (
            tuple(named[n] for n in matching[0]) if matching else tuple(itertools.islice(above, 3))
        )
    size = next(above)
    blocked = {pad, eos, *sentinel_ids, *fim, *singles.values(), *(i for _, i in modes)}
    blocked |= set(tokenizer.blocked) | set(named.values())
    text = _text_range(tokenizer, blocked)
    return check_token_ids(
        TokenIds(
            size=size,
            text=text,
            pad=pad,
            eos=eos,
            bos=pad,
            sentinels=sentinel_ids,
            modes=modes,
            fim=fim,
            texts=texts_of(tokenizer, size, text),
            **_facts_of_text(tokenizer, blocked, size, text),
            **singles,
        )
    )


def published_ids(
    tokenizer: Tokenizer,
    directory: str | os.PathLike,
    config: Mapping[str, Any],
    sentinels: int | None = None,
    specials: Sequence[str] = (),
) -> TokenIds:
    """Returns the special ids of a published model according to its files.

    Args:
        directory: a model folder in the format of `transformers`. Its tokenizer_config.json and
            special_tokens_map.json name the padding, start, end, mask, class and separator tokens.
        config: the values of config.json, which has the same tokens as ids, and the decoder's start
            token.
        sentinels: number of sentinels, or None for the sentinels that the tokenizer has. Missing
            sentinels are appended.
        specials: other special tokens. Missing ones are appended.

    Raises ValueError if the ids are inconsistent, as `token_ids` does.
    """
    return _ids_by_roles(tokenizer, _names_in(directory), config, sentinels, specials)


def transformers_ids(tokenizer: Any, config: Any) -> TokenIds:
    """Returns the special ids of a tokenizer of `transformers`, for a model with this config.

        tokenizer = transformers.AutoTokenizer.from_pretrained("bert-base-uncased")
        model = transformers.BertForMaskedLM(transformers.BertConfig())
        transformers_ids(tokenizer, model.config)
        -> TokenIds(size=30522, text=(104, 30522), pad=0, eos=102, mask=103, cls=101, sep=102, …)

    Add further tokens that an objective needs to the tokenizer, for example with
    `tokenizer.add_tokens(["[R]", "[S]", "[X]"], special_tokens=True)`, and to the model with
    `resize_token_embeddings`.

    Args:
        config: the config of the model, with its number of ids and the decoder's start token.

    Raises ValueError for a tokenizer that does not use the library `tokenizers`, for ids without an
    embedding in the model, and for inconsistent ids, as `token_ids` does.
    """
    names = {f"{role}_token": getattr(tokenizer, f"{role}_token", None) for role in ROLES}
    fields = {name: value for name, value in config.to_dict().items() if value is not None}
    ids = _ids_by_roles(_tokenizer_of_transformers(tokenizer), names, fields)
    if ids.size > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {ids.size} ids, but the model has only {config.vocab_size} "
            f"embeddings: call model.resize_token_embeddings({ids.size})."
        )
    return ids


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of each text by a tokenizer of `transformers`, without special ids.

        encode_texts(tokenizer, ["a text", "another text, with </s>"])

    Names of special tokens in a text are read as text. This holds even for tokenizers that ignore
    `split_special_tokens=True`. For example, the unigram model of `T5Tokenizer` has the piece
    `</s>`.

    Raises ValueError for a tokenizer that does not use the library `tokenizers`.
    """
    encoded = _tokenizer_of_transformers(tokenizer).encode_batch(texts)
    return [ids.tolist() for ids in encoded]


def _tokenizer_of_transformers(tokenizer: Any) -> Tokenizer:
    import tokenizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ValueError(
            f"Got a {type(tokenizer).__name__}, expected a tokenizer of transformers that uses the "
            "library `tokenizers`: load a PreTrainedTokenizerFast."
        )
    return tokenizer_of(tokenizers.Tokenizer.from_str(backend.to_str()))


# The roles of special tokens in `transformers` that have a single token.
ROLES = ("pad", "eos", "bos", "mask", "cls", "sep")


def _ids_by_roles(
    tokenizer: Tokenizer,
    names: Mapping[str, Any],
    config: Mapping[str, Any],
    sentinels: int | None = None,
    specials: Sequence[str] = (),
) -> TokenIds:
    roles = _roles(tokenizer, names, config)
    eos = roles.get("eos", roles.get("sep", tokenizer.eos))
    tokenizer = tokenizer._replace(pad=roles.get("pad", tokenizer.pad), eos=eos)
    if tokenizer.pad is None:  # Segments mark padding, so any id that is not text can be used.
        tokenizer = tokenizer._replace(pad=eos)
    known = _known_names(tokenizer) | {"fim": tuple(prefix for prefix, _, _ in FIM_NAMES)}
    present = [key for key, names in known.items() if not tokenizer.named.keys().isdisjoint(names)]
    wanted = dict.fromkeys([key for key in present if key not in ("pad", "eos")] + list(specials))
    count = len(_named_sentinels(tokenizer.named)) if sentinels is None else sentinels
    ids = token_ids(tokenizer, sentinels=count, specials=list(wanted))
    start = config.get("decoder_start_token_id")
    start = roles.get("bos") if start is None else start
    singles = {key: roles[key] for key in ("mask", "cls", "sep") if key in roles}
    fields: dict[str, Any] = {"bos": ids.pad if start is None else start} | singles
    return check_token_ids(ids._replace(**fields))


def _names_in(directory: str | os.PathLike) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = os.path.join(directory, file)
        if os.path.exists(path):
            names |= read_record(path, dict)
    return names


def _roles(
    tokenizer: Tokenizer, names: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, int]:
    """Returns the ids of the special tokens by role, from their names or the model's config."""
    roles = {}
    for key in ROLES:
        name = names.get(f"{key}_token")
        name = name.get("content") if isinstance(name, dict) else name
        token = tokenizer.named.get(str(name), config.get(f"{key}_token_id"))
        token = token[0] if isinstance(token, list) else token  # LLaMA 3 has several end tokens.
        if token is not None:
            roles[key] = token
    return roles


def _facts_of_text(
    tokenizer: Tokenizer, blocked: set[int], size: int, text: tuple[int, int]
) -> dict[str, Any]:
    """Returns which ids start a word, which end a sentence, and which are digits.

    An id starts a word if its text starts with white space. It ends a sentence if its text ends
    with one of `SENTENCE_ENDS`, which `SENTENCE_CLOSERS` may follow. The starts of words are
    unknown if only the ends of words are marked (`Tokenizer.marks_starts`).
    """
    starts, ends = np.zeros((2, size), bool)
    digits = []
    for i in range(tokenizer.size):
        surface = "" if i in blocked else tokenizer.surface(i)
        starts[i] = surface[:1].isspace()
        ends[i] = surface.rstrip(SENTENCE_CLOSERS).endswith(SENTENCE_ENDS)
        if surface.strip(" ") in DIGITS and text[0] <= i < text[1]:
            digits.append((i, int(surface)))
    flags = {
        "word_starts": bitmap(starts) if tokenizer.marks_starts else b"",
        "sentence_ends": bitmap(ends),
    }
    return flags | {"digits": tuple(digits)}


def texts_of(tokenizer: Tokenizer, size: int, text: tuple[int, int]) -> TokenTexts:
    """Returns the texts of `size` ids.

    Ids outside the range `text` have an empty text, and so has the id of unknown text: its piece,
    such as "<unk>", is only a name.
    """
    first, last = text

    def read() -> list[bytes]:
        text_ids = set(range(first, last)) - {tokenizer.unknown}
        return [tokenizer.piece(i) if i in text_ids else b"" for i in range(size)]

    return TokenTexts(read)


def codec(tokenizer: Tokenizer, ids: TokenIds) -> Codec:
    """Returns the conversion of ids to and from text that has special tokens by name.

        codec.decode([262, 4219, 1]) -> "def<extra_id_0></s>"
        codec.encode("def<extra_id_0></s>") -> [262, 4219, 1]

    To encode a *document*, use `tokenizer.encode_batch`, which reads such names as ordinary text.
    """
    names = special_names(tokenizer, ids)
    by_name = {name: i for i, name in names.items()}
    pieces = (
        (r"\s*" if name in tokenizer.swallowing else "") + re.escape(name)  # as RoBERTa's <mask>
        for name in sorted(by_name, key=len)[::-1]
    )
    pattern = re.compile(f"({'|'.join(pieces)})")

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for part in pattern.split(text):
            if part.lstrip() in by_name:
                out.append(by_name[part.lstrip()])
            elif part:
                out.extend(tokenizer.encode_batch([part])[0].tolist())
        return out

    def has_no_text(i: int) -> bool:
        return i in names or i >= tokenizer.size

    def decode(tokens: Sequence[int]) -> str:
        out: list[str] = []
        for is_special, run in itertools.groupby(map(int, tokens), has_no_text):
            if is_special:
                out += [names.get(i, f"<id_{i}>") for i in run]
                continue
            text = tokenizer.decode(list(run))
            lead = " " if tokenizer.spaced and out and not text.startswith(" ") else ""
            out.append(lead + text)
        return "".join(out)

    return Codec(encode, decode)


def special_names(tokenizer: Tokenizer, ids: TokenIds) -> dict[int, str]:
    """Returns the name of each special id: the tokenizer's own name, or else our name."""
    singles = {"pad": ids.pad, "eos": ids.eos, "mask": ids.mask, "cls": ids.cls, "sep": ids.sep}
    names = {i: KNOWN_NAMES[key][0] for key, i in singles.items() if i is not None}
    names |= {i: KNOWN_NAMES.get(name, (f"[{name}]",))[0] for name, i in ids.modes}
    names |= {i: f"<extra_id_{k}>" for k, i in enumerate(ids.sentinels)}
    names |= dict(zip(ids.fim, FIM_NAMES[0], strict=False))
    tokenizer_names = {i: name for name, i in tokenizer.named.items()}
    return {i: tokenizer_names.get(i, name) for i, name in names.items()}


def _known_names(tokenizer: Tokenizer) -> dict[str, tuple[str, ...]]:
    """Returns the names of special tokens. ESM-2 puts a protein between <cls> and <eos>."""
    if tokenizer.named.keys() >= {"<cls>", "<eos>"}:
        return KNOWN_NAMES | {"sep": (*KNOWN_NAMES["sep"], "<eos>")}
    return KNOWN_NAMES


def _named_sentinels(named: dict[str, int]) -> list[int]:
    names = itertools.takewhile(named.__contains__, map("<extra_id_{}>".format, itertools.count()))
    return [named[name] for name in names]


def _text_range(tokenizer: Tokenizer, blocked: Iterable[int]) -> tuple[int, int]:
    """Returns the longest range of ids without a special id.

    Special ids may be anywhere. For example, BERT's [MASK] is 103 of 30,522 ids, so text is
    [104, 30522).

    Raises ValueError if this range has fewer than half of the ids that are not special.
    """
    walls = sorted({-1, tokenizer.size, *(i for i in blocked if i < tokenizer.size)})
    length, first = max((b - a - 1, a + 1) for a, b in itertools.pairwise(walls))
    ordinary = tokenizer.size - (len(walls) - 2)
    if length < ordinary / 2:
        raise ValueError(
            f"The special tokens of {tokenizer.path or tokenizer.kind} are scattered among its "
            f"{tokenizer.size} ids: the longest range without a special token is "
            f"[{first}, {first + length}), expected at least half of the {ordinary} other ids. Use "
            "a tokenizer whose special tokens are all at the start or at the end."
        )
    return first, first + length
