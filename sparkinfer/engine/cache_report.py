"""Says why no more of a prompt was reused. Knows the tree and the tokens; never what is done about it."""

from __future__ import annotations

from sparkinfer.engine.prefix_cache import PrefixCache
from sparkinfer.engine.prefix_node import PrefixNode
from sparkinfer.engine.sequence import PrefixHints
from sparkinfer.request import CacheReport


def explain(cache: PrefixCache | None, data: bytes, hints: PrefixHints, resumed: PrefixNode) -> CacheReport:
    """The report on a sequence that resumes from `resumed`. data: token_key of all its tokens."""
    if cache is None or not hints.uses_cache or not data:
        return CacheReport("disabled" if cache is None else "opted_out")
    width = cache.key_bytes
    block_size = width // 4
    node = cache.root(hints.salt)
    num_blocks = (len(data) - 4) // width
    while node.depth < num_blocks:
        child = node.children.get(data[node.depth * width : (node.depth + 1) * width])
        if child is None:
            break
        node = child
    rest = data[node.depth * width : (node.depth + 1) * width]
    num_common = max((_common_tokens(key, rest) for key in node.children), default=0)
    matched = node.depth * block_size + num_common
    ends_in_tree = node.depth == num_blocks > 0 and not node.children
    is_whole = ends_in_tree or matched >= len(data) // 4 - 1
    return CacheReport(
        reason=_reason(cache, node, rest, resumed, len(data) // 4, is_whole),
        cached_tokens=resumed.depth * block_size,
        matched_tokens=min(matched, len(data) // 4),
        diverged_at=None if is_whole or not node.children else matched,
    )


def _reason(
    cache: PrefixCache, node: PrefixNode, rest: bytes, resumed: PrefixNode, num_tokens: int, is_whole: bool
) -> str:
    if is_whole and resumed.depth == node.depth:
        return "whole_prompt"
    if cache.was_evicted(node, rest):
        return "evicted"
    if resumed.depth < node.depth:
        return "no_checkpoint"
    if cache.snapshots is not None and not node.depth and num_tokens < cache.config.min_tokens:
        return "below_minimum"
    if node.children:
        return "diverged"
    return "nothing_cached" if node.parent is None else "not_cached_further"


def _common_tokens(a: bytes, b: bytes) -> int:
    """Tokens at the beginning of both.

    >>> _common_tokens(b"aaaabbbbcccc", b"aaaabbbxcccc")
    1
    """
    count = 0
    while count < min(len(a), len(b)) and a[count : count + 4] == b[count : count + 4]:
        count += 4
    return count // 4
