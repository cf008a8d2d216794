"""Engine over ScriptedModelRunner: what becomes of requests, as the owner of an Engine can rely on it."""

from __future__ import annotations

import pytest

from sparkinfer.engine.fake_model_runner import ScriptedModelRunner, cycle_script, echo_script
from sparkinfer.request import FinishReason, RequestId
from tests.engine.engines import EOS, Clock, make_engine, run, sampling


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_is_queued_gets_its_tokens_and_ends_once(overlap):
    engine, sink = make_engine(overlap=overlap)
    assert not engine.has_work
    engine.submit(RequestId(7), 2, [5, 6, 7, 8], sampling(max_tokens=10))
    run(engine)
    assert sink.queued == [7]
    assert sink.tokens == {(7, 0): [6, 7, 8]}
    end = sink.finished[(7, 0)]
    assert (end.finish_reason, end.reply_to, end.status_code, end.num_cached_tokens) == (FinishReason.STOP, 2, 0, 0)


def test_the_stop_token_is_not_told_and_ignore_eos_runs_to_the_limit():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], sampling(max_tokens=5, ignore_eos=True))
    engine.submit(RequestId(2), 0, [5, 6], sampling(max_tokens=5, stop_token_ids=(6,)))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, EOS, EOS, EOS], (2, 0): [5]}
    assert sink.finished[(1, 0)].finish_reason == FinishReason.LENGTH
    assert sink.finished[(2, 0)].finish_reason == FinishReason.STOP


def test_max_tokens_schedules_no_surplus_token():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=2))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6]}
    assert engine.stats.num_computed_tokens == 3 + 1


def test_overlap_drops_the_surplus_token_after_a_stop():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=100))
    run(engine)
    assert sink.tokens == {(1, 0): [5, 6, 7]}
    assert engine.stats.num_computed_tokens == 3 + 4  # three tokens fed back, and one beyond the stop token


def test_n_choices_have_their_own_ends_and_seeds():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6], sampling(max_tokens=4, seed=40), n=3)
    run(engine)
    assert sink.queued == [1]
    assert sorted(sink.finished) == [(1, 0), (1, 1), (1, 2)]
    assert [sink.finished[(1, i)].sampling.seed for i in range(3)] == [40, 41, 42]


def test_the_context_limit_ends_a_sequence_with_length():
    engine, sink = make_engine(ScriptedModelRunner(cycle_script([9], 100, EOS), 64, 4), max_model_len=8)
    engine.submit(RequestId(1), 0, [1] * 7, sampling(max_tokens=50))
    engine.submit(RequestId(2), 0, [1] * 4, sampling(max_tokens=50))
    run(engine)
    assert {key: len(tokens) for key, tokens in sink.tokens.items()} == {(1, 0): 1, (2, 0): 4}
    assert all(end.finish_reason == FinishReason.LENGTH for end in sink.finished.values())


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [([], 400, "empty_prompt"), ([1] * 20, 400, "context_length_exceeded"), ([1] * 16, 503, "kv_cache_too_small")],
)
def test_what_can_never_run_ends_with_an_error(prompt, status, code):
    engine, sink = make_engine(ScriptedModelRunner(echo_script(1, EOS), 4, 4), max_model_len=20)
    engine.submit(RequestId(1), 0, prompt, sampling(max_tokens=4), n=2)
    run(engine)
    assert sink.queued == []
    assert [(end.finish_reason, end.status_code, end.code) for end in sink.finished.values()] == [
        (FinishReason.ERROR, status, code)
    ] * 2


def test_a_full_queue_answers_429_and_takes_requests_again_afterwards():
    engine, sink = make_engine(max_queue_depth=2)
    for request_id in range(3):
        engine.submit(RequestId(request_id), 0, [1, 2], sampling(max_tokens=4), n=2)
    run(engine)
    assert sink.queued == [0, 1]
    assert sink.finished[(2, 0)].status_code == sink.finished[(2, 1)].status_code == 429
    engine.submit(RequestId(3), 0, [1, 2], sampling(max_tokens=4))
    run(engine)
    assert sink.finished[(3, 0)].finish_reason == FinishReason.STOP


def test_abort_ends_waiting_and_running_sequences_and_ignores_strangers():
    engine, sink = make_engine(max_num_seqs=1)
    engine.submit(RequestId(1), 0, [1, 2], sampling(max_tokens=50, ignore_eos=True))
    engine.submit(RequestId(2), 0, [1, 2], sampling(max_tokens=50))
    for _ in range(3):
        engine.step()
    for request_id in (1, 2, 99, 1):
        engine.abort(RequestId(request_id))
    run(engine)
    assert {key: end.finish_reason for key, end in sink.finished.items()} == {
        (1, 0): FinishReason.ABORT,
        (2, 0): FinishReason.ABORT,
    }
    assert (2, 0) not in sink.tokens


def test_abort_of_one_choice_leaves_the_others():
    engine, sink = make_engine()
    engine.submit(RequestId(1), 0, [5, 6, 7], sampling(max_tokens=9), n=3)
    engine.step()
    engine.abort(RequestId(1), choice=1)
    run(engine)
    ends = [sink.finished[(1, i)].finish_reason for i in range(3)]
    assert ends == [FinishReason.STOP, FinishReason.ABORT, FinishReason.STOP]
    assert (1, 1) not in sink.tokens


def test_open_requests_are_known_by_the_worker_they_came_from():
    engine, _ = make_engine()
    for request_id, reply_to in [(1, 0), (2, 1), (3, 0)]:
        engine.submit(RequestId(request_id), reply_to, [5, 6], sampling(max_tokens=9))
    assert engine.scheduler.open_requests.of_worker(0) == [1, 3]
    run(engine)
    assert engine.scheduler.open_requests.of_worker(0) == []


def test_a_deadline_ends_running_and_waiting_requests_with_504():
    clock = Clock()
    engine, sink = make_engine(clock=clock, max_num_seqs=1, request_timeout_s=5.0)
    engine.submit(RequestId(1), 0, [1, 2], sampling(max_tokens=500, ignore_eos=True))
    engine.submit(RequestId(2), 0, [1, 2], sampling(max_tokens=500))
    for _ in range(4):
        engine.step()
    clock.now += 4.0
    engine.submit(RequestId(3), 0, [1, 2], sampling(max_tokens=2))
    engine.step()
    assert not sink.finished
    clock.now += 1.0
    run(engine)
    assert [sink.finished[(i, 0)].status_code for i in (1, 2, 3)] == [504, 504, 0]
