"""Texts of terminals: JSON's punctuation, and strings under constraints. Knows notation; never schemas.

A string whose characters matter is written in one way only (char_set.in_json), so that what is excluded cannot come
back in another spelling.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

from sparkinfer.grammar import char_set
from sparkinfer.grammar.character_class import possible
from sparkinfer.grammar.number_text import ANY_INTEGER, ANY_NUMBER
from sparkinfer.grammar.output_grammar import literal, regex_escaped
from sparkinfer.grammar.pattern import Encode, Term, full_match, run
from sparkinfer.grammar.shapes import StringShape

_SPACE = r"([ ]|\r?\n[ \t]{0,80})?"  # bounded: a model that likes newlines cannot go on with them for ever
_HIGH, _LOW = r"[dD][89abAB][0-9a-fA-F]{2}", r"[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rf'\\(["\\\/bfnrt]|u([0-9abcefABCEF][0-9a-fA-F]{{3}}|[dD][0-7][0-9a-fA-F]{{2}}|{_HIGH}\\u{_LOW}))'

SHARED = {
    "JSON_STRING": rf'/"([^"\\\x00-\x1f]|{_ESCAPE})*"/',
    "JSON_NUMBER": f"/{ANY_NUMBER}/",
    "JSON_INTEGER": f"/{ANY_INTEGER}/",
    "JSON_OBJECT": rf"/\{{{_SPACE}/",
    "JSON_OBJECT_END": rf"/{_SPACE}\}}/",
    "JSON_ARRAY": rf"/\[{_SPACE}/",
    "JSON_ARRAY_END": rf"/{_SPACE}\]/",
    "JSON_COMMA": f"/,{_SPACE}/",
    "JSON_COLON": "/:[ ]?/",
}
_CHARACTER = char_set.in_json(char_set.EVERY)
_NO_PROBE, _NO_PROBE_NOR_TAG = r"[^\x01]", r"[^<\x01]"


def json_literal(value: object) -> str:
    """JSON text of a value, as Lark writes that text; strings in the one spelling that they have in terminals.

    >>> print(json_literal('a/"é'), json_literal([1, {"a": None}]))
    "\\"a/\\\\\\"é\\"" "[1, {\\"a\\": null}]"
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        text = json.dumps(value)
    return literal(text)


def json_string(shape: StringShape, more: Iterable[Term] = ()) -> str:
    """A terminal for JSON strings of a shape; "JSON_STRING" where anything goes.

    more: further terms over the inside of the string, in char_set.in_json's notation. Raises PatternError.
    """
    limited = _limited_run(shape)
    if limited is not None:
        shape = dataclasses.replace(shape, patterns=[], min_length=0, max_length=None)
    terms = [*more, *([limited] if limited else []), *_pattern_terms(shape, char_set.in_json)]
    if shape.is_limited:
        most = "" if shape.max_length is None else shape.max_length
        terms.append(Term(f"{_CHARACTER}{{{shape.min_length},{most}}}"))
    if not terms and not shape.excluded:
        return "JSON_STRING"
    wanted = [f'/"(?:{term.regex})"/' for term in terms if not term.is_negated]
    unwanted = [f'~/"(?:{term.regex})"/' for term in terms if term.is_negated]
    if shape.excluded:
        unwanted.append(f"~({' | '.join(json_literal(text) for text in shape.excluded)})")
    return " & ".join([*(wanted or [f'/"{_CHARACTER}*"/']), *unwanted])


def raw_string(shape: StringShape, free_of: Iterable[str], rivals: str | None) -> str:
    """A terminal for text of a shape, as it is.

    free_of: regular expressions that the text has to match as well, from end to end; text without "<" does
    rivals:  what else may stand in its place begins with one of these characters; None: with any

    Text has PROBE in it only where nothing but markup and its length is left to be said. Raises PatternError.
    """
    terms = _pattern_terms(shape, char_set.raw)
    full = [text for text in shape.excluded if text and len(text) == shape.max_length]  # others can go on
    firsts = None if terms or rivals is None else {*rivals, *(text[0] for text in full)}
    wanted, without = [f"/{regex}/" for regex in free_of], ""
    if shape.is_limited:
        bounds = f"{{{shape.min_length},{'' if shape.max_length is None else shape.max_length}}}"
        wanted.append(f"/(?s:.{bounds})/")
        if not terms and not shape.excluded:  # says nothing more, but in a way in which masks are looked up
            without = f"/{_NO_PROBE_NOR_TAG if firsts != set() else '[^<]'}{bounds}/ | "
    if (terms or shape.excluded or shape.is_limited) and firsts != set():
        wanted.append(_probed_behind(firsts))
    wanted += [f"/{term.regex}/" for term in terms if not term.is_negated]
    unwanted = [f"~/{term.regex}/" for term in terms if term.is_negated]
    if shape.excluded:
        unwanted.append(f"~({' | '.join(literal(text) for text in shape.excluded)})")
    return without + " & ".join([*wanted, *unwanted])


def _probed_behind(firsts: set[str] | None) -> str:
    """Text that has PROBE in it only if it begins with another character than these; None: not at all."""
    if firsts is None:
        return f"/{_NO_PROBE}*/"
    named = "".join(regex_escaped(first) for first in sorted(firsts))
    return f"/([{named}]{_NO_PROBE}*|[^\\x01{named}](?s:.)*)?/"


def _limited_run(shape: StringShape) -> Term | None:
    """The one pattern of a shape and its length together, if that is a run: those are looked up, intersections not."""
    found = run(shape.patterns[0][0]) if len(shape.patterns) == 1 and shape.is_limited else None
    if found is None:
        return None
    least = max(found.least, shape.min_length)
    most = min((n for n in (found.most, shape.max_length) if n is not None), default=None)
    if most is not None and least > most:
        return None
    return Term(f"{char_set.in_json(found.characters)}{{{least},{'' if most is None else most}}}")


def _pattern_terms(shape: StringShape, encode: Encode) -> list[Term]:
    terms = [term for pattern, _ in shape.patterns for term in full_match(pattern, encode)]
    for pattern, _ in shape.not_patterns:
        # of several terms one has to fail; it is the first that does
        terms.append(Term(full_match(pattern, encode, possible)[0].regex, is_negated=True))
    return terms
