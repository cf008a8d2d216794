"""Text that would pass for markers, and templates that would not end."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.tokenizer import Tokenizer
from tests.text.conversations import assistant, call, chat, system, tool, tool_of, user

SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_response>",
    "<tool_response>", "<start_of_turn>", "<end_of_turn>", "<bos>",
]
HOSTILE = st.lists(
    st.sampled_from(
        [*SPECIALS, "<", ">", "|>", "<|im_", "end|>", "</", "think", "im_end", " ", "\n", "\ufdd0", "\\ufdd0"]
    )
    | st.text(max_size=3),
    max_size=6,
).map("".join)


def conversation(text: str, key: str, name: str, late: str) -> list[tuple[str, ChatPrompt]]:
    """Conversations with the given strings in every place that a client or a third party fills."""
    definition = {"type": "function", "function": {"name": name, "description": text, key: {"enum": [text]}}}
    calls = (call(name, json.dumps({key: text, "k2": [text]})),)
    agent = chat(
        system(text), user(text), assistant("A " + text, tool_calls=calls), tool(text), tools=(tool_of(definition),),
        template_kwargs={"note": text},
    )
    with_late = chat(system(text), user(text), assistant("A"), system(late), user(late))
    return [("chatml_strict", agent), ("chatml_strict", with_late), ("alternating", with_late)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_client_text_never_becomes_a_special_token(
    tokenizer: Tokenizer, templates: dict[str, ChatTemplate], text: str, key: str, name: str, late: str
) -> None:
    structural = set(tokenizer.vocabulary.structural_ids.values())
    harmless = conversation("t", "k", "n", "l")
    for (template, prompt), (_, plain) in zip(conversation(text, key, name, late), harmless):
        rendered = templates[template].render(prompt)
        ids = tokenizer.encode_rendered(rendered)
        expected = tokenizer.encode_rendered(templates[template].render(plain))
        assert [i for i in ids if i in structural] == [i for i in expected if i in structural]
        assert tokenizer.decode(ids, skip_special=False) == tokenizer.decode(tokenizer.encode(rendered.text))


def test_the_templates_own_tokens_are_tokens(tokenizer: Tokenizer, templates: dict[str, ChatTemplate]) -> None:
    rendered = templates["chatml_strict"].render(chat(user("<|im_end|>")))
    assert rendered.text == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n"
    ids = tokenizer.vocabulary.structural_ids
    start, end, think = ids["<|im_start|>"], ids["<|im_end|>"], ids["<think>"]
    encode = tokenizer.encode
    assert tokenizer.encode_rendered(rendered) == [
        start, *encode("user\n<|im_end|>"), end, *encode("\n"), start, *encode("assistant\n"), think, *encode("\n")
    ]


def test_ascii_json_does_not_show_the_sentinel(tokenizer: Tokenizer) -> None:
    ascii_only = ChatTemplate("{{ messages[0].content|tojson(ensure_ascii=true) }}", tokenizer)
    rendered = ascii_only.render(chat(user("é<|im_end|>\\ufdd0")))
    assert json.loads(rendered.text) == "é<|im_end|>\\ufdd0"
    assert rendered.special_spans == ()


@pytest.mark.parametrize("body", [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "{% for i in range(10**5) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ 'x' * 10**10 }}", "{{ [1] * 10**10 }}", "{{ 10**10**10 }}",
    "{{ 'a'.center(10**10) }}", "{{ 'a'|indent(10**9) }}",
    "{{ '%1000000000d' % 1 }}", "{{ '{:1000000000d}'.format(1) }}", "{{ [[]]|tojson(indent=10**10) }}",
    "{{ messages.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ missing.field }}",
    "{{ none + 'x' }}", "{{ 1 / 0 }}", "{{ missing|tojson }}", "{% include 'x' %}", "{{ raise_exception('no') }}",
])
def test_bad_templates_are_the_clients_error_and_end(tokenizer: Tokenizer, body: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(body, tokenizer).render(chat(user("u")))
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_long_messages_are_not_mistaken_for_runaway_templates(templates: dict[str, ChatTemplate]) -> None:
    long = "{: 12345678 }% <b>\n" * 400_000
    assert len(templates["chatml_strict"].render(chat(user(long), assistant(long), user("q"))).text) > 2 * len(long) - 9


def test_template_kwargs_cannot_replace_the_conversation(templates: dict[str, ChatTemplate]) -> None:
    prompt = chat(user("q"), template_kwargs={"messages": [], "add_generation_prompt": False, "bos_token": "x"})
    assert templates["chatml_strict"].render(prompt) == templates["chatml_strict"].render(chat(user("q")))
