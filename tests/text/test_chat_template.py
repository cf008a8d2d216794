"""Rendering against transformers and golden prompts; injection; late system messages; limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import RequestError
from sparkinfer.request import ChatPrompt, Message, Tool, ToolCall
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
GOLDENS = json.loads((TEMPLATES / "chat_goldens.json").read_text())
NAMES = ("chatml_strict", "alternating", "features")

SEARCH_DEFINITION = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find – <b>&'\"</b> 日本",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
    },
}


def tool_of(definition: dict[str, Any]) -> Tool:
    return Tool(name=definition["function"]["name"], definition=json.dumps(definition))


SEARCH = tool_of(SEARCH_DEFINITION)


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


@pytest.fixture(scope="module")
def tokenizer(qwen2_metadata: dict[str, Any]) -> Tokenizer:
    """Qwen2's vocabulary with the newer families' special tokens over some of its padding."""
    added = {
        "<think>": 4, "</think>": 4, "<tool_call>": 4, "</tool_call>": 4, "<tool_response>": 4, "</tool_response>": 4,
        "<start_of_turn>": 3, "<end_of_turn>": 3, "<bos>": 3,
    }
    tokens = list(qwen2_metadata["tokenizer.ggml.tokens"])
    types = list(qwen2_metadata["tokenizer.ggml.token_type"])
    start = len(tokens) - len(added)
    tokens[start:], types[start:] = added.keys(), added.values()
    changes = {"tokens": tokens, "token_type": types, "bos_token_id": tokens.index("<bos>")}
    return Tokenizer.from_metadata(qwen2_metadata | {f"tokenizer.ggml.{key}": v for key, v in changes.items()})


@pytest.fixture(scope="module")
def templates(tokenizer: Tokenizer) -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(source(name), tokenizer) for name in NAMES}


def chat(*messages: Message, **options: Any) -> ChatPrompt:
    return ChatPrompt(messages=messages, **options)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str | None, **fields: Any) -> Message:
    return Message(role="assistant", content=text, **fields)


def tool(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="call_1")


def call(name: str = "search", arguments: str = '{"q": "a<b & \\"c\\"", "n": 3}') -> ToolCall:
    return ToolCall(id="call_1", name=name, arguments=arguments)


def from_openai(messages: list[dict[str, Any]], **options: Any) -> ChatPrompt:
    renamed = [
        Message(role=m["role"], content=m["content"], reasoning=m.get("reasoning_content")) for m in messages
    ]
    return chat(*renamed, **options)


@pytest.mark.parametrize("case", GOLDENS, ids=[case["case"] for case in GOLDENS])
def test_goldens(templates: dict[str, ChatTemplate], case: dict[str, Any]) -> None:
    fields = dict(case["input"])
    prompt = from_openai(
        fields.pop("messages"), add_generation_prompt=fields.pop("add_generation_prompt", True), template_kwargs=fields
    )
    if "error" in case:
        with pytest.raises(RequestError, match=case["error"]) as caught:
            templates["chatml_strict"].render(prompt)
        assert (caught.value.status, caught.value.param) == (400, "messages")
    else:
        assert templates["chatml_strict"].render(prompt).text == case["text"]


CONVERSATIONS = [
    chat(user("Hello"), tools=(SEARCH,)),
    chat(system("Be a pirate."), user("Hello"), tools=(SEARCH,)),
    chat(user("a"), assistant("b"), user("c"), tools=(SEARCH,), template_kwargs={"enable_thinking": False}),
    chat(system("s"), user("日本語 🦙 e\u0301 \x00"), assistant("  b\n"), user("{{ 7 * 7 }} {% raw"), tools=(SEARCH,)),
    chat(
        user("q"), assistant(None, reasoning="hm", tool_calls=(call(), call())), tool("1"), tool("2"), tools=(SEARCH,)
    ),
    chat(user("q"), assistant("<think>\nhm\n</think>\n\nyes."), add_generation_prompt=False, tools=(SEARCH,)),
    chat(user("q"), assistant("hm</think>yes"), user("> quoted <"), tools=(SEARCH,)),
    chat(system(""), user(""), assistant(""), user("end."), tools=(SEARCH,), template_kwargs={"reasoning_effort": 1}),
    chat(*[user(str(i)) if i % 2 == 0 else assistant("r" * i) for i in range(21)], tools=(SEARCH,)),
]


def by_transformers(name: str, prompt: ChatPrompt) -> str | None:
    """The prompt by transformers' apply_chat_template, None if the template refuses it."""
    reference = PreTrainedTokenizerFast(
        tokenizer_object=Backend(models.BPE()), chat_template=source(name), bos_token="<bos>", eos_token="<|endoftext|>"
    )
    messages: list[dict[str, Any]] = []
    for message in prompt.messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.reasoning is not None:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        messages.append(fields)
    try:
        text = reference.apply_chat_template(
            messages, tools=[json.loads(tool.definition) for tool in prompt.tools] or None, tokenize=False,
            add_generation_prompt=prompt.add_generation_prompt, **prompt.template_kwargs,
        )
    except (ValueError, jinja2.TemplateError):
        return None
    return str(text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", range(len(CONVERSATIONS)))
def test_equals_transformers(templates: dict[str, ChatTemplate], name: str, index: int) -> None:
    prompt = CONVERSATIONS[index]
    expected = by_transformers(name, prompt)
    if expected is None:
        with pytest.raises(RequestError):
            templates[name].render(prompt)
    else:
        assert templates[name].render(prompt).text == expected


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


def test_a_reply_with_its_own_reasoning_block_is_understood(templates: dict[str, ChatTemplate]) -> None:
    block = assistant("<think>\nwhy <|im_end|>\n</think>\n\nA </think> B")
    field = assistant("A </think> B", reasoning="why <|im_end|>")
    rendered = templates["chatml_strict"].render(chat(user("q"), block, add_generation_prompt=False))
    assert rendered == templates["chatml_strict"].render(chat(user("q"), field, add_generation_prompt=False))
    spelled = [rendered.text[start:end] for start, end in rendered.special_spans]
    assert spelled == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_end|>"]


def test_a_reasoning_block_that_the_template_leaves_alone_is_text(tokenizer: Tokenizer) -> None:
    verbatim = ChatTemplate("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", tokenizer)
    rendered = verbatim.render(chat(assistant("<think>x</think>y")))
    assert rendered.text == "<think>x</think>y<|im_end|>"
    assert [rendered.text[start:end] for start, end in rendered.special_spans] == ["<|im_end|>"]


def test_late_system_message_keeps_its_place_in_chatml(templates: dict[str, ChatTemplate]) -> None:
    turns = [system("one"), user("q"), assistant("", reasoning="r", tool_calls=(call(),)), tool("t")]
    template = templates["chatml_strict"]
    before = template.render(chat(*turns, add_generation_prompt=False)).text
    text = template.render(chat(*turns, system(" two "), user("next"), system("three"))).text
    assert text.startswith("<|im_start|>system\none<|im_end|>\n<|im_start|>user\nq<|im_end|>\n")
    assert text.endswith(
        "<|im_start|>system\ntwo<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n"
        "<|im_start|>system\nthree<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    only_system = template.render(chat(*turns, system("two"), add_generation_prompt=False)).text
    assert only_system == before + "<|im_start|>system\ntwo<|im_end|>\n", "what came before is unchanged"


def test_two_leading_system_messages(templates: dict[str, ChatTemplate]) -> None:
    assert templates["chatml_strict"].render(chat(system("a"), system("b"), user("q"))).text.startswith(
        "<|im_start|>system\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n<|im_start|>user\n"
    )


def test_late_system_message_joins_a_user_turn_elsewhere(templates: dict[str, ChatTemplate]) -> None:
    template = templates["alternating"]
    assert template.render(chat(user("a"), assistant("b"), system("s"), user("c"))).text == (
        "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>assistant\nb<end_of_turn>\n"
        "<start_of_turn>user\ns\n\nc<end_of_turn>\n<start_of_turn>model\n"
    )
    assert "user\na\n\ns<end_of_turn>" in template.render(chat(user("a"), system("s"))).text


def test_continue_final_message(templates: dict[str, ChatTemplate]) -> None:
    prompt = chat(user("q"), assistant("The answer is "), continue_final_message=True)
    assert templates["alternating"].render(prompt).text.endswith("assistant\nThe answer is")
    assert templates["chatml_strict"].render(prompt).text.endswith("</think>\n\nThe answer is")
    for messages in ((user("q"),), (user("q"), assistant("", tool_calls=(call(),)))):
        with pytest.raises(RequestError, match="continue_final_message"):
            templates["chatml_strict"].render(chat(*messages, continue_final_message=True))


@pytest.mark.parametrize("content", ["", " ", "\n"])
def test_continuation_of_nothing_keeps_what_the_template_writes_before_it(
    templates: dict[str, ChatTemplate], content: str
) -> None:
    prompt = chat(user("q"), assistant(content), continue_final_message=True)
    assert templates["chatml_strict"].render(prompt).text.endswith("</think>\n\n")


def test_continuation_drops_only_the_message_s_own_trailing_blanks(tokenizer: Tokenizer) -> None:
    trimming = ChatTemplate("{% for m in messages %}A:\n\n{{ m.content|trim }}|{% endfor %}", tokenizer)
    for content, shown in (("x \n", "x"), ("  x", "x"), ("x", "x"), ("", ""), ("\n", ""), (" \n ", "")):
        prompt = chat(user("q"), assistant(content), continue_final_message=True)
        assert trimming.render(prompt).text == f"A:\n\nq|A:\n\n{shown}"


def test_continuation_keeps_trailing_blanks_where_the_template_does(tokenizer: Tokenizer) -> None:
    verbatim = ChatTemplate("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", tokenizer)
    prompt = chat(user("q"), assistant("The answer is "), continue_final_message=True)
    assert verbatim.render(prompt).text == "q<|im_end|>The answer is "


def test_without_a_template(tokenizer: Tokenizer, smollm2: Tokenizer) -> None:
    assert ChatTemplate(None, smollm2).render(chat(system("s"), user("u"))).text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )
    tiny = Tokenizer.from_metadata({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]} | {
        "tokenizer.ggml.pre": "gpt-2"
    })
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplate.from_metadata({}, tiny).render(chat(user("u")))
    with pytest.raises(RequestError, match="does not parse"):
        ChatTemplate("{% for %}", tokenizer).render(chat(user("u")))


def test_tool_calls_reach_the_template_as_mappings(tokenizer: Tokenizer) -> None:
    shape = ChatTemplate("{{ messages[0].tool_calls|tojson }}", tokenizer)
    turn = assistant(None, tool_calls=(call("f", '{"b": 1, "a": "é"}'), call("g", ""), call("h", "{not json")))
    assert json.loads(shape.render(chat(turn)).text) == [
        {"type": "function", "id": "call_1", "function": {"name": "f", "arguments": {"b": 1, "a": "é"}}},
        {"type": "function", "id": "call_1", "function": {"name": "g", "arguments": {}}},
        {"type": "function", "id": "call_1", "function": {"name": "h", "arguments": "{not json"}},
    ]


def test_nine_character_call_ids_for_templates_that_insist(tokenizer: Tokenizer) -> None:
    insisting = ChatTemplate(
        "{% for m in messages %}{% set id = m.tool_call_id or m.tool_calls[0].id %}"
        "{% if id|length != 9 %}{{ raise_exception('id') }}{% endif %}{{ id }} {% endfor %}", tokenizer,
    )
    first, second = insisting.render(chat(assistant(None, tool_calls=(call(),)), tool("t"))).text.split()
    assert first == second


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


def test_embedded_model_template(embedded_model: Path) -> None:
    metadata = GGUFFile.open(embedded_model).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    rendered = ChatTemplate.from_metadata(metadata, tokenizer).render(chat(system("Be brief."), user("Hi <|im_end|>")))
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_rendered(rendered)
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert tokenizer.decode(ids, skip_special=False) == rendered.text
