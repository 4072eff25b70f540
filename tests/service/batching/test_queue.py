"""The order and the bounds of the queue."""

import pytest

from service.batching.over_share import over_share
from service.batching.queue import ItemQueue
from service.batching.request import InferenceRequest, Item
from service.batching.turns import MOST_COUNTED, MOST_EMPTY_LANES, MOST_NEW_TURNS
from service.domain.backend import Priority
from service.domain.caller import GATEWAY, Caller
from tests.service.limits import LIMITS, limits

ROOMY = limits(max_queue_items=100, max_queue_bytes=1000)
SMALL = limits(max_queue_items=10, max_queue_bytes=1000)


def push(
    queue: ItemQueue,
    num_items: int,
    deadline: float,
    priority: Priority = "normal",
    caller: Caller = GATEWAY,
    now: float = 0.0,
) -> InferenceRequest:
    request = InferenceRequest(num_items, 1, deadline, lambda: None, priority, caller=caller)
    queue.push([Item(b"12345", request, i, now) for i in range(num_items)], 5 * num_items)
    return request


def test_normal_priority_goes_first_then_the_earliest_deadline_then_the_first_come() -> None:
    queue = ItemQueue(LIMITS)
    low, late, early, second = push(queue, 1, 1.0, "low"), push(queue, 2, 9.0), push(queue, 1, 2.0), push(queue, 1, 2.0)
    popped = [queue.pop() for _ in range(5)]
    assert [item.request for item in popped] == [early, second, late, late, low]
    assert [item.index for item in popped[2:4]] == [0, 1], "the items of a request stay together, in order"
    assert (list(queue), queue.num_items, queue.num_bytes) == ([], 0, 0)


def test_only_more_urgent_items_are_before_a_request() -> None:
    queue = ItemQueue(LIMITS)
    push(queue, 3, 2.0)
    push(queue, 2, 9.0)
    assert queue.num_before(InferenceRequest(1, 1, 5.0, lambda: None)) == 3
    assert queue.num_before(InferenceRequest(1, 1, 1.0, lambda: None)) == 0
    assert queue.num_before(InferenceRequest(1, 1, 1.0, lambda: None, "low")) == 5


def test_room_is_bounded_in_items_and_bytes_and_dropped_items_make_room() -> None:
    queue = ItemQueue(LIMITS)
    gone, expired = push(queue, 3, 9.0), push(queue, 4, 2.0)
    assert queue.has_room(1, 65)
    assert not queue.has_room(2, 10)
    assert not queue.has_room(1, 66)
    gone.end()
    queue.drop_unwanted(1.0)
    assert [item.request for item in queue] == [expired] * 4
    queue.drop_unwanted(2.0)
    assert queue.has_room(8, 100)


def test_callers_take_turns_that_are_worth_their_shares() -> None:
    queue = ItemQueue(ROOMY)
    greedy, heavy, light = Caller("greedy"), Caller("heavy", share=2.5), Caller("light")
    push(queue, 20, 1.0, caller=greedy)  # the earliest deadlines, and the first to come
    push(queue, 20, 9.0, caller=heavy)
    push(queue, 2, 9.0, caller=light)
    assert "".join(queue.pop().request.caller.name[0] for _ in range(16)) == "hhlghhhlghhghhhg"
    push(queue, 1, 0.5, "low", caller=light)
    push(queue, 1, 9.0, caller=light)
    rest = [queue.pop().request for _ in range(28)]
    assert [request.caller.name for request in rest[:5]].count("light") == 1
    assert rest[-1].priority == "low"
    assert queue.num_items == 0


def test_a_newcomer_waits_for_newcomers_alone_unless_it_has_much() -> None:
    queue = ItemQueue(ROOMY)
    greedy, heavy, light = Caller("greedy"), Caller("heavy", share=3), Caller("light")
    push(queue, 40, 1.0, caller=greedy)
    push(queue, 40, 1.0, caller=heavy)
    assert queue.num_before(InferenceRequest(1, 1, 5.0, lambda: None, caller=light)) == 3
    assert queue.num_before(InferenceRequest(4, 1, 5.0, lambda: None, caller=light)) == 4 + 12
    assert queue.num_before(InferenceRequest(4, 1, 5.0, lambda: None, "low", caller=light)) == 80
    assert queue.num_before(InferenceRequest(1, 1, 0.5, lambda: None, caller=greedy)) == 3
    assert queue.num_before(InferenceRequest(1, 1, 5.0, lambda: None, caller=greedy)) == 40 + 40


def test_the_wait_behind_a_thousand_callers_is_estimated_from_a_few() -> None:
    looked_at: list[int] = []

    class Watched(list[Item]):
        def __len__(self) -> int:
            looked_at.append(1)
            return super().__len__()

    queue = ItemQueue(limits(max_queue_items=10_000, max_queue_bytes=100_000))
    lengths = [1000, *(1 + number % 7 for number in range(1000))]
    for length in lengths:
        push(queue, length, 1.0, caller=Caller())
    for lane in queue.lanes:
        lane.items = Watched(lane.items)
    found = queue.num_before(InferenceRequest(4, 1, 5.0, lambda: None, caller=Caller()))
    assert found == pytest.approx(sum(min(length, 4) for length in lengths), rel=0.02)
    assert 0 < len(looked_at) <= MOST_COUNTED


def test_a_queue_is_dominated_while_one_caller_has_far_more_than_others_who_called_of_late() -> None:
    queue = ItemQueue(ROOMY)
    greedy, light = Caller("greedy"), Caller("light")
    assert not queue.num_beside_greedy()
    push(queue, 40, 1.0, caller=greedy)
    assert not queue.num_beside_greedy(), "nobody else has called"
    push(queue, 1, 1.0, caller=light, now=1.0)
    assert queue.num_beside_greedy()
    assert [queue.pop().request.caller.name for _ in range(2)] == ["light", "greedy"]
    assert queue.num_beside_greedy(), "the other one may call again"
    push(queue, 20, 1.0, caller=light, now=2.0)
    assert not queue.num_beside_greedy()
    queue.clear()
    push(queue, 1, 1.0, caller=greedy, now=8.0)
    assert queue.num_beside_greedy()
    push(queue, 1, 1.0, caller=greedy, now=14.0)
    assert not queue.num_beside_greedy(), "that was long ago"


def test_who_waits_beside_a_greedy_caller_is_counted_without_it() -> None:
    queue = ItemQueue(ROOMY)
    greedy, others = Caller("greedy"), [Caller(f"light-{number}") for number in range(3)]
    push(queue, 40, 1.0, caller=greedy)
    for number, caller in enumerate(others, start=1):
        push(queue, 1, 1.0, caller=caller)
        assert queue.num_beside_greedy() == number
    assert [queue.pop().request.caller for _ in others] == others
    assert queue.num_beside_greedy() == 1, "it waits alone, and the others may call again"


def test_what_is_dropped_costs_no_turn() -> None:
    queue = ItemQueue(ROOMY)
    one, other = Caller("one"), Caller("other")
    push(queue, 4, 1.0, caller=one)
    push(queue, 4, 1.0, caller=other)
    assert queue.drop().request.caller is other
    assert [queue.pop().request.caller.name for _ in range(4)] == ["other", "one", "other", "one"]


def test_who_has_most_of_a_full_queue_makes_room_for_who_has_less() -> None:
    queue = ItemQueue(SMALL)
    greedy, heavy, light = Caller("greedy"), Caller("heavy", share=4), Caller("light")
    urgent, late = push(queue, 2, 1.0, caller=greedy), push(queue, 2, 5.0, caller=greedy)
    low = push(queue, 1, 1.0, "low", greedy)
    push(queue, 5, 1.0, caller=heavy)
    assert over_share(queue.lanes, SMALL, light, 1, 1) == ([low], False)
    assert over_share(queue.lanes, SMALL, light, 2, 1) == ([low, late], False)
    assert over_share(queue.lanes, SMALL, light, 5, 1) == ((), True), "that would be more than anybody has"
    assert over_share(queue.lanes, SMALL, greedy, 1, 1) == ((), True)
    assert over_share(queue.lanes, SMALL, heavy, 1, 1) == ([low], False)
    queue.remove([low, late])
    assert (queue.num_items, queue.num_bytes, next(iter(queue)).request) == (7, 35, urgent)


def test_a_full_queue_of_one_caller_is_full_and_so_is_one_in_which_all_have_their_share() -> None:
    greedy = Caller("greedy")
    queue = ItemQueue(SMALL)
    push(queue, 10, 1.0, caller=greedy)
    assert over_share(queue.lanes, SMALL, greedy, 1, 1) == ((), False)
    queue = ItemQueue(SMALL)
    for number in range(10):
        push(queue, 1, 1.0, caller=Caller(str(number)))
    newcomer_share = Caller("big", share=2)
    assert over_share(queue.lanes, SMALL, newcomer_share, 1, 1) == ([next(iter(queue)).request], False)
    assert over_share(queue.lanes, SMALL, greedy, 1, 1)[0] == ()


def test_who_asks_for_little_goes_first_but_not_twice_before_who_waits_has_had_a_turn() -> None:
    queue = ItemQueue(ROOMY)
    greedy, light = Caller("greedy"), Caller("light")
    push(queue, 20, 1.0, caller=greedy)
    served = []
    for _ in range(4):  # it asks again as soon as it is served, and so never has more than one here
        push(queue, 1, 9.0, caller=light)
        served += [queue.pop().request.caller.name for _ in range(2)]
    assert served == ["light", "greedy"] * 4
    push(queue, 1, 9.0, caller=light)
    assert queue.pop().request.caller is light
    push(queue, 1, 9.0, caller=light)
    assert [queue.pop().request.caller.name for _ in range(3)] == ["greedy", "light", "greedy"]


def test_new_callers_without_end_stop_nobody_and_leave_nothing_behind() -> None:
    queue = ItemQueue(ROOMY)
    greedy = Caller("greedy")
    push(queue, 90, 1.0, caller=greedy)
    num_served = 0
    for number in range(20 * MOST_NEW_TURNS):
        push(queue, 1, 9.0, caller=Caller(str(number)))
        num_served += queue.pop().request.caller is greedy
    assert num_served == pytest.approx(20, abs=2)
    for number in range(3 * MOST_EMPTY_LANES):
        push(queue, 1, 9.0, caller=Caller(str(number)))
        queue.pop()
    assert len(queue.lanes) <= 2 * MOST_EMPTY_LANES
