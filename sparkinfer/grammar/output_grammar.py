"""What an answer may look like, as text in llguidance's dialect of Lark. Knows notation; never models or requests.

A grammar is put together from right-hand sides (`Rule`) by whoever knows the form of an answer:

    rules = {"start": Rule('reasoning? "\n" value'), "value": json_rule(schema, "response_format.json_schema.schema")}
    grammar = assemble(rules)

Lower-case names are rules; upper-case names are terminals, one regular expression each (`&`, `~` and `|` combine
them). A special token is written by its text, `<tool_call>`; ordinary text never matches one. llguidance's regular
expressions are Rust's: no look-around, `(?s:.)` for any character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.errors import RequestError

PROBE = "\x01"  # a character that free text alone may have: JSON has it escaped, other terminals are kept from it


@dataclass(frozen=True, slots=True)
class FreeText:
    """What the free texts of a grammar have in common: text without some markup, that may be limited in length.

    markup:      what they must not have; each begins with "<" and has no other "<"
    end:         what comes behind one that is limited; "" if none is
    """

    markup: tuple[str, ...]
    end: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """The right-hand side of one rule, with the rules that it needs beside it.

    approximations:  "path: keyword" of what the text cannot hold, so that the finished value has to be checked
    path:            where the client asked for it; "" if nobody did
    places:          the same of helpers, by name; smaller parts come later
    text_end:        what ends free text that is limited; "" if none is
    """

    text: str
    helpers: Mapping[str, str] = field(default_factory=dict)
    approximations: tuple[str, ...] = ()
    path: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    text_end: str = ""


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """A whole grammar, `start` being the answer. A model may end its turn where it accepts, and nowhere else.

    free_text: None where it is not known that nothing else admits PROBE
    """

    lark: str
    approximations: tuple[str, ...] = ()
    free_text: FreeText | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False)  # paths of rules; smaller parts come later


def assemble(rules: Mapping[str, Rule | str]) -> OutputGrammar:
    """One grammar of named right-hand sides; "start" is among them.

    >>> assemble({"start": 'word "!"', "word": Rule("WORD", {"WORD": "/[a-z]+/"})}).lark
    'start: word "!"\\nword: WORD\\nWORD: /[a-z]+/'
    """
    lines: dict[str, str] = {}
    approximations: list[str] = []
    places: dict[str, str] = {}
    for name, rule in rules.items():
        if isinstance(rule, str):
            lines[name] = rule
            continue
        lines[name] = rule.text
        lines |= rule.helpers
        approximations += rule.approximations
        places |= ({name: rule.path} if rule.path else {}) | dict(rule.places)
    lark = "\n".join(f"{name}: {text}" for name, text in lines.items())
    return OutputGrammar(lark, tuple(approximations), places=places)


def literal(text: str) -> str:
    """`text` itself, as Lark writes it.

    >>> print(literal('a "b"'), literal(chr(10)))
    "a \\"b\\"" "\\n"
    """
    return json.dumps(text, ensure_ascii=False)


def marker(text: str, special_tokens: Collection[str]) -> str:
    """A marker of a protocol: the special token where the model has one of that text, else the text.

    >>> marker("<tool_call>", {"<tool_call>"}), marker("<tool_call>", ())
    ('<tool_call>', '"<tool_call>"')
    """
    return text if text in special_tokens else literal(text)


def text_without(forbidden: Collection[str]) -> str:
    """A terminal: any text that has none of `forbidden` in it.

    >>> text_without(["<a"])
    '/[^<]*(<([^<a][^<]*)?)*/'
    """
    if not forbidden:
        return "/(?s:.*)/"
    if all(text.rfind("<") == 0 for text in forbidden):
        return f"/{markup_free('[^<', forbidden)}/"
    alternatives = "|".join(regex_escaped(text) for text in forbidden)
    return f"/(?s:.*)/ & ~/(?s:.*)({alternatives})(?s:.*)/"


def markup_free(other: str, forbidden: Iterable[str]) -> str:
    """A regular expression for text without `forbidden`, all of which begin with "<" and have no other "<".

    It says what may follow each "<", character by character; llguidance looks up most tokens at once then, where a
    complement makes it try every token.

    other:  the beginning of a class of the characters that are allowed at all, without "]"; does not have "<"
    """
    trie: _Trie = {}
    for text in forbidden:
        node = trie
        for char in text[1:]:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"{other}]*(<{_after(trie, other)})*"


def _after(node: _Trie, other: str) -> str:
    characters = "".join(regex_escaped(char) for char in node)
    longer = [regex_escaped(char) + _after(child, other) for char, child in node.items() if "" not in child]
    return "(" + "|".join([f"{other}{characters}]{other}]*", *longer]) + ")?"


def regex_escaped(text: str) -> str:
    """`text` itself inside /.../.

    >>> regex_escaped("</a.b")
    '<\\\\/a\\\\.b'
    """
    return "".join(f"\\x{ord(char):02x}" if char < " " else _ESCAPED.sub(r"\\\g<0>", char) for char in text)


_Trie = dict[str, Any]  # what may follow, by its first character; "" ends a text
_ESCAPED = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


def choice_rule(choices: Iterable[str], path: str, kept_out: Collection[str] = ()) -> Rule:
    """One of `choices`. Raises RequestError 400 naming `path` when there is none, or one with one of `kept_out`."""
    choices = list(choices)
    for choice in choices:
        markup = next((text for text in kept_out if text in choice), None)
        if markup is not None:
            message = f"{path}: {markup!r} has a meaning of its own for this model"
            raise RequestError(400, message, param=path, code="invalid_grammar")
    texts = [literal(text) for text in dict.fromkeys(choices) if text]
    if not texts:
        raise RequestError(400, f"{path}: at least one text that is not empty is needed", param=path)
    return Rule(" | ".join(texts), path=path)
