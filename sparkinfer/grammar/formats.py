"""The formats of strings that a grammar holds, as patterns. What is not here is an annotation. Knows RFCs only."""

from __future__ import annotations

_YEAR = r"(?:\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"  # 0000 is no date to Python, nor to what validates with it
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join([
    rf"(?:{_GROUP}:){{7}}{_GROUP}",
    *(rf"(?:{_GROUP}:){{{before}}}(?::{_GROUP}){{1,{7 - before}}}" for before in range(1, 7)),
    rf":(?::{_GROUP}){{1,7}}",
    "::",
])
_DURATION = (
    r"P(?:\d{1,9}W|(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)(?:T(?:{0}))?|T(?:{0}))".replace(
        "{0}", r"\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S"
    )
)
_URI_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

# RFC 3339 (a leap second is never written), 5321, 1123, 4291, 4122, 3986
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,31}}){{0,1}}@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*://(?:{_HOST}(?::[0-9]{{1,4}})?)(?:/{_URI_CHAR}*)*(?:\?(?:{_URI_CHAR}|[/?])*)?"
           rf"(?:#(?:{_URI_CHAR}|[/?])*)?",
}

# What somebody else wrote may be any that the RFCs allow, of which a grammar writes the shorter ones.
_WIDER = {
    "email": r"[^@\s]{1,64}@[^@\s]+\.[^@\s]+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*\.?",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S*",
}


def format_pattern(name: str) -> str | None:
    """An anchored pattern, None for a format that is not held."""
    return _anchored(FORMATS.get(name))


def checked_pattern(name: str) -> str | None:
    """The same for a string that is there already."""
    return _anchored(_WIDER.get(name, FORMATS.get(name)))


def _anchored(body: str | None) -> str | None:
    return None if body is None else f"^(?:{body})$"
