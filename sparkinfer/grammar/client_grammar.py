"""Regular expressions and grammars that a client writes itself, as rules. Knows notations; never requests."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from llguidance.gbnf_to_lark import any_to_lark

from sparkinfer.errors import RequestError
from sparkinfer.grammar import char_set
from sparkinfer.grammar.endless_rules import TEXT, endless_rules
from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.grammar.output_grammar import Rule, text_without
from sparkinfer.grammar.pattern import PatternError, PatternTooLargeError, full_match
from sparkinfer.grammar.trial import possible_beginning

_SPECIAL = re.compile(r"<[^<>\s][^<>\n]*>")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_JSON = re.compile(rf"{TEXT.pattern}|(?P<schema>%json\b\s*)")
_OPTIONS = re.compile(r"^\s*%llguidance\s*\{\s*\}\s*$", re.MULTILINE)


def regex_rule(pattern: str, path: str, kept_out: Collection[str] = ()) -> Rule:
    """Text that matches the whole of `pattern`, whose own anchors at its ends say nothing more.

    What Python's syntax does not have is taken for that of llguidance, which is Rust's. Raises RequestError 400.
    kept_out: what the text must not have in it
    """
    regex = _whole(pattern, path)
    if not kept_out:
        return Rule(regex, path=path)
    helpers = {"FORMATTED": f"{regex} & {text_without(kept_out)}"}
    return Rule("FORMATTED", helpers, path=path, places={"FORMATTED": path})


def _whole(pattern: str, path: str) -> str:
    inner = pattern.removeprefix("^")
    if inner.endswith("$") and not inner.endswith("\\$"):
        inner = inner[:-1]
    try:
        terms = full_match(f"^(?:{inner})$", char_set.raw)
    except PatternTooLargeError as error:
        raise RequestError(400, f"{path}: {error}", param=path, code="invalid_grammar") from error
    except PatternError:
        return f"/(?:{_escaped_slashes(inner)})/"
    except RecursionError:
        raise RequestError(400, f"{path}: is nested too deeply", param=path, code="invalid_grammar") from None
    return f"/{terms[0].regex}/"


def _escaped_slashes(pattern: str) -> str:
    """With every "/" escaped, as Lark wants it between slashes.

    >>> _escaped_slashes("a/b\\\\/c")
    'a\\\\/b\\\\/c'
    """
    return re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern, flags=re.DOTALL)


def _unescaped(gbnf: str) -> str:
    r"""GBNF with characters beyond ASCII instead of their numbers, which mean something else in Lark's notation.

    >>> print(_unescaped(r'root ::= "\u00e9" [\U0001F600\u005d] "\\u"'))
    root ::= "é" [😀\x5d] "\\u"
    """
    def plain(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is None:
            return match[0]
        code = int(digits, 16)
        if not any(low <= code <= high for low, high in char_set.EVERY):
            raise ValueError(f"{match[0]} is no character")
        return f"\\x{code:02x}" if code < 0x80 else chr(code)

    return _ESCAPE.sub(plain, gbnf)


def lark_rule(grammar: str, path: str, kept_out: Collection[str] = ()) -> Rule:
    """Text of a grammar in Lark's notation, or in GBNF; its rules are its own. Raises RequestError 400.

    kept_out: what the text must not begin with, blanks aside
    """
    try:
        lark = any_to_lark(_unescaped(grammar)) if "::=" in grammar else grammar
    except Exception as error:  # the library raises nothing narrower for what a client wrote
        message = f"{path}: is not a grammar: {str(error)[:200]}"
        raise RequestError(400, message, param=path, code="invalid_grammar") from error
    if not grammar.strip():
        raise RequestError(400, f"{path}: is empty", param=path, code="invalid_grammar")
    lark = _OPTIONS.sub("", lark)
    outline = _without_schemas(lark, path)
    plain = TEXT.sub('""', outline)
    for directive in ("%llguidance", "%lark"):
        if directive in plain:
            raise RequestError(400, f"{path}: {directive} is not supported", param=path, code="invalid_grammar")
    if _SPECIAL.search(plain):
        message = f"{path}: special tokens (<...>) are not supported: they are not in the answer's text"
        raise RequestError(400, message, param=path, code="invalid_grammar")
    endless = endless_rules(outline)
    if endless:  # whose masks llguidance may compute for ever
        message = f"{path}: no text satisfies it, or a part of it: the rule {endless[0]!r} goes on for ever"
        raise RequestError(400, message, param=path, code="invalid_grammar")
    rule = Rule(f"%lark {{\n{lark}\n}}", path=path)
    markup = possible_beginning(rule.text, kept_out)
    if markup is not None:
        message = f"{path}: its text may begin with {markup!r}, which has a meaning of its own for this model"
        raise RequestError(400, message, param=path, code="invalid_grammar")
    return rule


def _without_schemas(lark: str, path: str) -> str:
    """The grammar with a text for every "%json" and its schema. RequestError 400 for one that no answer can follow."""
    parts, end, at = [], 0, 0
    while (match := _JSON.search(lark, at)) is not None:
        at = match.end()
        if match["schema"] is None:
            continue
        parts.append(lark[end : match.start()])
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, at)
        except (ValueError, RecursionError):
            message = f"{path}: %json is not followed by a schema"
            raise RequestError(400, message, param=path, code="invalid_grammar") from None
        json_rule(schema, f"{path}: %json")
        at = end
    return '""'.join([*parts, lark[end:]])
