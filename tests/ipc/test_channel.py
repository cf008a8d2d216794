from __future__ import annotations

import asyncio
import signal

import pytest
import uvloop

from ipc.channel import HIGH_WATER_MARK, Inbox, Outbox
from ipc.codec import ENCODER, TEXT_INBOX, MalformedMessage
from ipc.endpoints import inbox
from ipc.messages import Abort

SENDER = """
import sys
from ipc.channel import Outbox
from ipc.codec import ENCODER
from ipc.messages import Abort
endpoint, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
outbox = Outbox(endpoint, ENCODER)
sent = 0
while sent < count:
    sent += outbox.send(Abort(first + sent))
print("sent", flush=True)
sys.stdin.read()
"""

RECEIVER = """
import sys
from ipc.channel import Inbox
from ipc.codec import TEXT_INBOX
inbox = Inbox(sys.argv[1], TEXT_INBOX)
print("bound", flush=True)
while True:
    inbox.poll(10.0)
    for message in inbox.drain():
        print(message.request_id, flush=True)
"""


@pytest.fixture
def endpoint(tmp_path) -> str:
    return inbox(tmp_path, "text-0", 1)


@pytest.fixture
def peers(endpoint):
    receiver, sender = Inbox(endpoint, TEXT_INBOX), Outbox(endpoint, ENCODER)
    yield receiver, sender
    sender.close()
    receiver.close()


def receive(receiver: Inbox, count: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < count:
        assert receiver.poll(30.0)
        ids += [message.request_id for message in receiver.drain()]
    return ids


def test_messages_arrive_in_order(peers):
    receiver, sender = peers
    assert receiver.drain() == []
    for number in range(1000):
        assert sender.send(Abort(number))
    assert receive(receiver, 1000) == list(range(1000))
    assert not receiver.poll(0)


def test_messages_wait_for_an_inbox_that_is_not_there_yet(endpoint):
    sender = Outbox(endpoint, ENCODER)
    for number in range(10):
        assert sender.send(Abort(number))
    receiver = Inbox(endpoint, TEXT_INBOX)
    assert receive(receiver, 10) == list(range(10))
    receiver.close()
    sender.close()


def test_send_says_no_at_the_high_water_mark_and_close_does_not_wait(endpoint):
    sender = Outbox(endpoint, ENCODER)
    accepted = 0
    while sender.send(Abort(accepted)):
        accepted += 1
    assert accepted == HIGH_WATER_MARK
    assert not sender.send(Abort(accepted))
    sender.close()
    sender.close()


def test_peer_that_does_not_read_fills_up_and_loses_nothing(peers):
    receiver, sender = peers
    assert sender.send(Abort(0))
    assert receiver.poll(30.0)
    accepted = 1
    while sender.send(Abort(accepted)):
        accepted += 1
    assert accepted >= HIGH_WATER_MARK
    assert receive(receiver, accepted) == list(range(accepted))


def test_poll_wakes_for_a_message_from_a_process(endpoint, spawn):
    receiver = Inbox(endpoint, TEXT_INBOX)
    spawn(SENDER, endpoint, 0, 1)
    assert receiver.poll(30.0)
    assert receiver.drain() == [Abort(0)]
    receiver.close()


def test_malformed_message_is_named_and_the_next_one_is_read(peers):
    receiver, sender = peers
    sender.send({"type": "abort", "request_id": "five"})
    sender.send(Abort(6))
    with pytest.raises(MalformedMessage, match="TextInbox: malformed message 'abort'"):
        receive(receiver, 1)
    assert receive(receiver, 1) == [6]


def test_inbox_that_cannot_listen_names_the_endpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot listen at ipc://.*/missing/text-0.1.sock"):
        Inbox(inbox(tmp_path / "missing", "text-0", 1), TEXT_INBOX)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_watch_misses_nothing_from_several_processes(endpoint, spawn, new_loop):
    num_senders, count = 3, 4000
    receiver = Inbox(endpoint, TEXT_INBOX)
    early = Outbox(endpoint, ENCODER)
    early.send(Abort(10**6))
    assert receiver.poll(30.0)  # it lies here before anybody watches
    for index in range(num_senders):
        spawn(SENDER, endpoint, index * count, count)
    ids: list[int] = []

    async def collect() -> None:
        everything = asyncio.Event()

        def on_messages(messages: list[Abort]) -> None:
            ids.extend(message.request_id for message in messages)
            if len(ids) == num_senders * count + 1:
                everything.set()

        receiver.watch(asyncio.get_running_loop(), on_messages)
        await everything.wait()
        receiver.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(collect())
    assert ids[0] == 10**6
    assert sorted(ids[1:]) == list(range(num_senders * count))
    for index in range(num_senders):
        mine = [number for number in ids[1:] if number // count == index]
        assert mine == sorted(mine)
    early.close()
    receiver.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_watch_sees_each_single_message(peers, new_loop):
    """One at a time, each sent only after the last was seen: every wake-up counts."""
    receiver, sender = peers
    count = 300

    async def play() -> int:
        done = asyncio.Event()
        seen = 0

        def on_messages(messages: list[Abort]) -> None:
            nonlocal seen
            seen += len(messages)
            if seen == count:
                done.set()
            else:
                sender.send(Abort(seen))

        receiver.watch(asyncio.get_running_loop(), on_messages)
        sender.send(Abort(0))
        await done.wait()
        return seen

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(play()) == count


def test_watch_delivers_what_is_here_already(peers):
    """Nothing else comes that could wake the loop."""
    receiver, sender = peers
    sender.send(Abort(1))
    assert receiver.poll(30.0)

    async def play() -> list[Abort]:
        arrived: asyncio.Future[list[Abort]] = asyncio.get_running_loop().create_future()
        receiver.watch(asyncio.get_running_loop(), arrived.set_result)
        return await arrived

    assert asyncio.run(play()) == [Abort(1)]


def test_watch_goes_on_after_malformed_messages(peers):
    receiver, sender = peers
    count = 200
    for _ in range(count):
        sender.send({"type": "abort"})
    sender.send(Abort(1))

    async def play() -> tuple[list[BaseException], list[Abort]]:
        loop = asyncio.get_running_loop()
        errors: list[BaseException] = []
        arrived: asyncio.Future[list[Abort]] = loop.create_future()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        receiver.watch(loop, arrived.set_result)
        return errors, await arrived

    errors, messages = asyncio.run(play())
    assert [type(error) for error in errors] == [MalformedMessage] * count
    assert messages == [Abort(1)]


def test_respawned_worker_hears_nothing_meant_for_its_predecessor(tmp_path, spawn):
    first, second = inbox(tmp_path, "text-0", 1), inbox(tmp_path, "text-0", 2)
    child = spawn(RECEIVER, first)
    assert child.stdout.readline() == b"bound\n"
    old = Outbox(first, ENCODER)
    assert old.send(Abort(1))
    assert child.stdout.readline() == b"1\n"
    child.kill()
    assert child.wait() == -signal.SIGKILL
    for number in range(2, 50):
        assert old.send(Abort(number))
    successor = spawn(RECEIVER, second)
    assert successor.stdout.readline() == b"bound\n"
    new = Outbox(second, ENCODER)
    assert new.send(Abort(50))
    assert successor.stdout.readline() == b"50\n"
    old.close()
    new.close()


def test_sender_killed_and_respawned_does_not_disturb_the_inbox(endpoint, spawn):
    receiver = Inbox(endpoint, TEXT_INBOX)
    for generation in range(3):
        child = spawn(SENDER, endpoint, generation * 100, 100)
        assert receive(receiver, 100) == list(range(generation * 100, generation * 100 + 100))
        child.kill()
        assert child.wait() == -signal.SIGKILL
    receiver.close()


def test_message_of_many_megabytes_passes(peers):
    receiver, sender = peers
    large = Abort(2**64 - 1)
    payload = {"type": "count", "request_id": 1, "prompt": {"type": "text", "text": "a" * (16 << 20)}, "reply_to": 0}
    assert sender.send(payload)
    assert sender.send(large)
    assert receiver.poll(30.0)
    first = receiver.drain()
    while len(first) < 2:
        assert receiver.poll(30.0)
        first += receiver.drain()
    assert len(first[0].prompt.text) == 16 << 20
    assert first[1] == large
