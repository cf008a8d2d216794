"""The router of events, the choice of text worker, and ids."""

from __future__ import annotations

from ipc.codec import ENCODER
from ipc.messages import Abort, Delta, Failed, Finished, Started, Submit, TextEvent
from sparkinfer.errors import RequestError
from sparkinfer.request import Request, RequestId, TextPrompt
from sparkinfer.sampling_params import SamplingParams
from workers.http_events import EventRouter
from workers.http_generations import RequestIds
from workers.http_text_pool import LiveTextPool


class Sink:
    def __init__(self) -> None:
        self.is_done = False
        self.events: list[TextEvent] = []
        self.flushes = 0
        self.error: RequestError | None = None

    def feed(self, event: TextEvent) -> None:
        self.events.append(event)

    def flush(self, now: float) -> None:
        self.flushes += 1

    def fail(self, error: RequestError) -> None:
        self.error = error

    def cancel(self) -> None:
        self.is_done = True


class Outbox:
    def __init__(self) -> None:
        self.sent: list[object] = []
        self.is_full = False

    def send(self, message: object) -> bool:
        if not self.is_full:
            self.sent.append(message)
        return not self.is_full


class Peers:
    def __init__(self, *names: str) -> None:
        self.outboxes = {name: Outbox() for name in names}

    def outbox(self, name: str) -> Outbox | None:
        return self.outboxes.get(name)

    def names(self, role: str) -> list[str]:
        return [name for name in self.outboxes if name.startswith(role)]


def request(number: int, n: int = 1) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(request_id=RequestId(number), prompt=TextPrompt(text="x"), sampling=params, n=n)


def delta(number: int, choice: int = 0) -> Delta:
    return Delta(RequestId(number), choice, "x", "", 1)


def finish(number: int, choice: int = 0) -> Finished:
    return Finished(RequestId(number), choice, 1, 1, 0, 0, 1.0, 2.0)


def test_one_flush_per_answer_and_wake_up() -> None:
    router, first, second = EventRouter(), Sink(), Sink()
    router.add(RequestId(1), first, "text-0")
    router.add(RequestId(2), second, "text-0")
    router.deliver([delta(1), delta(2), delta(1), delta(99)])
    assert (len(first.events), len(second.events)) == (2, 1)
    assert (first.flushes, second.flushes) == (1, 1)
    router.deliver([])
    assert first.flushes == 1


def test_entry_leaves_with_the_last_choice() -> None:
    router, sink = EventRouter(), Sink()
    router.add(RequestId(1), sink, "text-0", num_choices=2)
    router.deliver([finish(1, 0)])
    assert (len(router), router.num_in_flight("text-0")) == (1, 1)
    router.deliver([delta(1, 1), finish(1, 1), delta(1, 1)])
    assert (len(router), router.num_in_flight("text-0")) == (0, 0)
    assert len(sink.events) == 3  # what comes after the end is not delivered
    assert router.remove(sink, [RequestId(1)]) == []


def test_failure_ends_all_choices() -> None:
    router, sink = EventRouter(), Sink()
    router.add(RequestId(1), sink, "text-0", num_choices=3)
    router.deliver([Started(RequestId(1), 3), finish(1), Failed(RequestId(1), 500, "no")])
    assert len(router) == 0


def test_a_dead_worker_fails_its_own_requests_only() -> None:
    router, lost, kept = EventRouter(), Sink(), Sink()
    router.add(RequestId(1), lost, "text-0")
    router.add(RequestId(2), kept, "text-1")
    router.fail_worker("text-0", RequestError(503, "gone"))
    assert lost.error is not None
    assert (kept.error, len(router)) == (None, 1)
    router.deliver([delta(1), delta(2)])
    assert (lost.events, len(kept.events)) == ([], 1)


def test_requests_go_to_the_worker_that_holds_fewest() -> None:
    peers = Peers("text-0", "text-1", "gpu-0")
    pool = LiveTextPool(3, 1, peers)  # type: ignore[arg-type]
    pool.submit(Sink(), [request(i) for i in range(1, 5)])  # type: ignore[arg-type]
    sent = {name: outbox.sent for name, outbox in peers.outboxes.items()}
    assert {name: len(messages) for name, messages in sent.items()} == {"text-0": 2, "text-1": 2, "gpu-0": 0}
    assert sent["text-0"][0] == Submit(request(1), 3, 1)


def test_abandoning_aborts_once_and_only_what_is_open() -> None:
    peers, sink = Peers("text-0"), Sink()
    pool = LiveTextPool(0, 1, peers)  # type: ignore[arg-type]
    pool.submit(sink, [request(1), request(2)])  # type: ignore[arg-type]
    pool.on_frames("text-0", [ENCODER.encode([delta(1)]), ENCODER.encode([finish(1)])])
    assert sink.flushes == 1
    pool.abandon(sink, [request(1), request(2)])  # type: ignore[arg-type]
    pool.abandon(sink, [request(1), request(2)])  # type: ignore[arg-type]
    assert peers.outboxes["text-0"].sent[2:] == [Abort(RequestId(2))]


def test_nothing_stays_behind_when_a_worker_takes_no_more() -> None:
    peers = Peers("text-0")
    pool = LiveTextPool(0, 1, peers)  # type: ignore[arg-type]
    peers.outboxes["text-0"].is_full = True
    for attempt in (peers, Peers()):
        pool._peers = attempt  # type: ignore[assignment]
        try:
            pool.submit(Sink(), [request(1)])  # type: ignore[arg-type]
        except RequestError as error:
            refused = error
        assert refused.status == 503
        assert len(pool.router) == 0


def test_ids_never_meet() -> None:
    makers = [RequestIds(http, generation) for http in (0, 1, 255) for generation in (1, 2, 65535)]
    ids = {maker.new() for maker in makers for _ in range(100)}
    assert len(ids) == 900
    assert all(0 <= request_id < 2**64 for request_id in ids)
