"""Which rules of a grammar in Lark's notation no text satisfies, for they go on for ever. Knows syntax; never masks.

What says something that is not known here (operators of terminals, `%` in a rule) is taken for one that ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# strings, expressions, comments; what any of them holds says nothing here
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*')
_HEAD = re.compile(r"^[ \t]*[?!]*([A-Za-z_]\w*)[ \t]*(?:\[[^\]\n]*\])?(?:\.-?\d+)?[ \t]*:(?!:)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*%[^\n]*", re.MULTILINE)
_TOKEN = re.compile(
    r'\s+|->\s*\w+|\.\.|(?P<text>""[a-z]*)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[()\[\]|])'
    r"|(?P<times>[*+?]|~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*,?\s*\d*\s*\})"
)


def endless_rules(lark: str) -> list[str]:
    """Names, in their order.

    >>> endless_rules('start: a | "b"\\na: "x" a\\nb: "x" b?')
    ['a']
    """
    plain = _DIRECTIVE.sub("", TEXT.sub('""', lark))
    heads = list(_HEAD.finditer(plain))
    ends = [head.start() for head in heads[1:]] + [len(plain)]
    bodies = [(head[1], _tokens(plain[head.end() : end])) for head, end in zip(heads, ends)]
    endless = {name for name, tokens in bodies if tokens is not None}
    num_known = -1
    while num_known != len(endless):
        num_known = len(endless)
        for name, tokens in reversed(bodies):  # rules usually stand before those that they name
            if name in endless and (tokens is None or _Body(tokens, endless).can_end()):
                endless.discard(name)
    return [name for name, _ in bodies if name in endless]


def _tokens(body: str) -> list[tuple[str, str]] | None:
    """Kinds and texts; None for a body that is not understood."""
    found, at = [], 0
    while at < len(body):
        match = _TOKEN.match(body, at)
        if match is None:
            return None
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
        at = match.end()
    return found


class _Body:
    """What stands behind a rule's colon, as long as the rules in `endless` are not known to end."""

    def __init__(self, tokens: list[tuple[str, str]], endless: Collection[str]) -> None:
        self._tokens = tokens
        self._endless = endless

    def can_end(self) -> bool:
        """Without recursion, for a client's brackets may be deep: of every open one what its alternatives said."""
        open_ones = [(False, True)]  # an alternative before ends; this one does, as far as it has been read
        item = True                  # the last item, which a `times` behind it may change
        for kind, text in self._tokens:
            any_ends, this_ends = open_ones[-1]
            if kind == "times":
                item = item or _may_be_none(text)
                continue
            this_ends, closing = this_ends and item, True
            if kind == "mark" and text in "([":
                open_ones[-1] = (any_ends, this_ends)
                open_ones.append((False, True))
            elif kind == "mark" and text == "|":
                open_ones[-1] = (any_ends or this_ends, True)
            elif kind == "mark":
                if len(open_ones) == 1:
                    return True  # llguidance will say what is wrong with it
                open_ones.pop()
                closing = any_ends or this_ends or text == "]"
            else:
                open_ones[-1] = (any_ends, this_ends)
                closing = kind == "text" or text not in self._endless
            item = closing
        any_ends, this_ends = open_ones[0]
        return any_ends or (this_ends and item)


def _may_be_none(times: str) -> bool:
    return times in "*?" or re.match(r"[~{]\s*0*\s*(?:,|\.\.|\}|$)", times) is not None
