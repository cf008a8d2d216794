"""ScriptedModelRunner: scripts by prompt, state by slot, and no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, StepCost, cycle_script, echo_script, said_script
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.sampling_params import SamplingParams


def prefill(slot: int, prompt: list[int], start: int = 0, end: int | None = None, output=(), **controls):
    end = len(prompt) if end is None else end
    admitted = Admission(SamplingParams(max_tokens=9, **controls), prompt, tuple(output)) if start == 0 else None
    samples = end == len(prompt) + len(output)
    return ScheduledSequence(None, slot, start, end - start, prompt[start:end], 0, (), samples, admitted)


def decode(slot: int, start: int) -> ScheduledSequence:
    return ScheduledSequence(None, slot, start, 1, None, 0, (), True)


def run(runner: ScriptedModelRunner, *rows: ScheduledSequence):
    return runner.launch(SchedulerOutput(list(rows), sum(row.num_tokens for row in rows))).wait()


def test_each_sequence_follows_the_script_of_its_prompt():
    runner = ScriptedModelRunner(echo_script(2, 0), 8, 4)
    assert run(runner, prefill(0, [4, 5, 6]), prefill(1, [7, 8], end=1)).token_ids == [5]
    assert run(runner, decode(0, 3), prefill(1, [7, 8], start=1)).token_ids == [6, 7]
    assert run(runner, decode(0, 4), decode(1, 2)).token_ids == [0, 8]
    assert run(runner, decode(0, 5)).token_ids == [0]


SAID = [
    ("say it: <<say>>one<</say>> please", "one"),
    ("<<say>>old<</say>> then <<say>>new<</say>>", "new"),
    ("<<say>>call<</say>>\n<<say>>done<</say>> ...", "call"),
    ("<<say>>call<</say>>\n<<say>>done<</say>> call <tool_response>2</tool_response>", "done"),
    ("<<say>>call<</say>><<say>>done<</say>> <tool_response>1 <tool_response>2 <tool_response>3", "done"),
    ("<<say>>a\n<<b>><</say>>", "a\n<<b>>"),
]


@pytest.mark.parametrize(("prompt", "said"), SAID)
def test_a_prompt_tells_what_is_said(prompt, said):
    def decode(ids):
        return "".join(map(chr, ids))

    def encode(text):
        return [ord(char) for char in text]

    script = said_script(decode, encode, 0, echo_script(2, 0))
    assert script(encode(prompt)) == [*encode(said), 0]
    assert script(encode("say nothing")) == [*encode("ng"), 0]


def test_a_slot_starts_anew_and_a_recomputed_sequence_goes_on_where_it_was():
    runner = ScriptedModelRunner(cycle_script([1, 2, 3], 5, 0), 8, 4)
    assert run(runner, prefill(0, [9])).token_ids == [1]
    assert run(runner, prefill(0, [9, 9])).token_ids == [1]
    recomputed = ScheduledSequence(
        None, 0, 0, 3, [9, 1, 2], 0, (), True, Admission(SamplingParams(max_tokens=9), [9], (1, 2))
    )
    assert run(runner, recomputed).token_ids == [3]


@pytest.mark.parametrize("busy", [True, False])
def test_steps_with_a_duration_give_the_same_tokens(busy):
    runner = ScriptedModelRunner(echo_script(1, 0), 8, 4, StepCost(base_us=200, per_token_us=10, busy=busy))
    assert run(runner, prefill(0, [4, 5])).token_ids == [5]


@pytest.mark.parametrize("busy", [True, False])
def test_a_step_is_done_when_its_time_has_passed(busy):
    runner = ScriptedModelRunner(echo_script(1, 0), 8, 4, StepCost(base_us=60e6, busy=busy))
    handle = runner.launch(SchedulerOutput([prefill(0, [4, 5])], 2))
    assert not handle.is_done(0.001)
    quick = ScriptedModelRunner(echo_script(1, 0), 8, 4, StepCost(base_us=200, busy=busy))
    handle = quick.launch(SchedulerOutput([prefill(0, [4, 5])], 2))
    while not handle.is_done(1.0):
        pass
    assert handle.wait().token_ids == [5]


def test_logprobs_only_for_those_who_ask():
    runner = ScriptedModelRunner(echo_script(1, 0), 8, 4)
    assert run(runner, prefill(0, [4])).logprobs is None
    asked, not_asked = run(runner, prefill(0, [4], logprobs=2), prefill(1, [5])).logprobs
    assert not_asked is None
    assert asked.logprob == asked.top_logprobs[0]
    assert asked.top_token_ids == [4, 5]


def test_engine_and_scripted_runner_do_without_torch():
    code = (
        "import sys, sparkinfer.engine.engine, sparkinfer.engine.fake_model_runner\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
