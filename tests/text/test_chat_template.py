"""Rules of rendering where templates and clients disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.errors import RequestError
from sparkinfer.text.chat_template import ChatTemplate
from sparkinfer.text.tokenizer import Tokenizer
from tests.text.conversations import assistant, call, chat, system, tool, user


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
