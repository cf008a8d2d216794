"""Builds the `tokenizers` object of a vocabulary. Knows merges and scores; never a special token.

Structural tokens are left out of the model's vocabulary altogether, so that no text whatever can encode to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, models, normalizers

from sparkinfer.errors import CheckpointError
from sparkinfer.text.pre_tokenizers import PreTokenizer
from sparkinfer.text.token_types import TokenType
from sparkinfer.text.vocabulary import Vocabulary, is_unicode


def byte_level_bpe(vocabulary: Vocabulary, merges: Iterable[str], rules: PreTokenizer) -> Tokenizer:
    """GPT-2 style BPE over bytes; merges are "left right" in order of rank. A byte without a token is dropped."""
    ids = vocabulary.mergeable_ids
    pairs = [pair for pair in map(_split_merge, merges) if _is_usable(pair, ids)]
    backend = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=rules.ignore_merges))
    normalizer = rules.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = rules.splitter()
    return _with_added_text(backend, vocabulary)


def sentencepiece_bpe(vocabulary: Vocabulary, scores: Sequence[float]) -> Tokenizer:
    """SentencePiece BPE: of all adjacent pairs that form a token, the one with the highest score is joined first.

    The text is one piece (no pre-tokenizer) with U+2581 for each blank; characters without a token fall back to byte
    tokens. Equals SentencePiece wherever the tokens' scores differ.
    """
    if len(scores) != len(vocabulary):
        raise CheckpointError(
            f"tokenizer.ggml.scores has {len(scores)} entries, tokenizer.ggml.tokens has {len(vocabulary)}"
        )
    ids = dict(vocabulary.mergeable_ids)
    unknown_texts = [
        (text, i) for i, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind == TokenType.UNKNOWN and is_unicode(text)
    ]
    ids.update(unknown_texts[:1])
    unknown_text = unknown_texts[0][0] if unknown_texts else None
    model = models.BPE(
        vocab=ids, merges=list(_merges_by_score(vocabulary, scores)), unk_token=unknown_text, fuse_unk=False,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    return _with_added_text(backend, vocabulary)


def _split_merge(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1:]


def _is_usable(pair: tuple[str, str], ids: dict[str, int]) -> bool:
    left, right = pair
    return left in ids and right in ids and left + right in ids


def _merges_by_score(vocabulary: Vocabulary, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Every way to form a token from two tokens, best token first."""
    normal = [
        (-scores[i], text)
        for text, i in vocabulary.mergeable_ids.items()
        if vocabulary.types[i] == TokenType.NORMAL and len(text) > 1
    ]
    ids = vocabulary.mergeable_ids
    for _, text in sorted(normal):
        for cut in range(1, len(text)):
            if text[:cut] in ids and text[cut:] in ids:
                yield text[:cut], text[cut:]


def _with_added_text(backend: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    added = [AddedToken(text, special=False, normalized=False) for text in vocabulary.added_text_ids]
    if added:
        backend.add_tokens(added)
    return backend
