"""How each `tokenizer.ggml.pre` value cuts text before byte-level BPE. Knows regular expressions; never a vocabulary.

Sources: the models' own tokenizer files where they are public (GPT-2, Llama 3, Llama 4/o200k, Qwen2, Qwen3.5, Tekken,
DeepSeek-V3), and llama.cpp's names for them (src/llama-vocab.cpp). Where llama.cpp approximates a model's expression
(case classes of o200k and Tekken), the model's own is used.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

logger = logging.getLogger("sparkinfer.text")

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED_1 = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
_CASED_2 = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
_SLASH_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K = rf"{_CASED_1}{_CONTRACTION}?|{_CASED_2}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASH_PUNCTUATION}|{_SPACES}"
_TEKKEN = rf"{_CASED_1}|{_CASED_2}|\p{{N}}|{_SLASH_PUNCTUATION}|{_SPACES}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES
)
_CJK_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's rules.

    patterns:       applied one after another; each cuts every piece that the one before left
    nfc:            text is brought to Unicode NFC first
    ignore_merges:  a piece that is a token as a whole is taken as it is
    adds_bos:       what `add_bos_token` means when the file does not say
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The `tokenizers` object: the splits, then bytes mapped to the printable byte alphabet."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULES = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_RULES = PreTokenizer((_QWEN2,), nfc=True)
_O200K_RULES = PreTokenizer((_O200K,), ignore_merges=True)
_DEEPSEEK3_RULES = PreTokenizer((r"\p{N}{1,3}", _CJK_KANA, _DEEPSEEK3))

KNOWN: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "deepseek-r1-qwen": _QWEN2_RULES,
    "deepseek-v3": _DEEPSEEK3_RULES,
    "gpt-2": PreTokenizer((_GPT2,)),
    "gpt-4o": _O200K_RULES,
    "llama-bpe": _LLAMA3_RULES,
    "llama-v3": _LLAMA3_RULES,
    "llama3": _LLAMA3_RULES,
    "llama4": _O200K_RULES,
    "muse-glimmer": _O200K_RULES,
    "qwen2": _QWEN2_RULES,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "refact": _SINGLE_DIGITS,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
}

_BY_ARCHITECTURE = {
    "llama": "llama-bpe",
    "muse-glimmer": "llama4",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen3moe": "qwen2",
}


def select(pre: str | None, architecture: str | None) -> PreTokenizer:
    """The rules of `tokenizer.ggml.pre`, or the architecture's usual ones with a loud warning.

    An unknown name degrades the model (rare words are cut differently) but does not stop it from loading.
    """
    if pre in KNOWN:
        return KNOWN[pre]
    fallback = _BY_ARCHITECTURE.get(architecture or "", "default")
    logger.warning(
        "tokenizer.ggml.pre is %s: falling back to %r (chosen for architecture %r). Answers may be "
        "worse; pass --tokenizer with the model's tokenizer.json to be exact. Known values: %s",
        "missing" if pre is None else f"{pre!r}, which is not known", fallback, architecture, ", ".join(sorted(KNOWN)),
    )
    return KNOWN[fallback]
