"""The order and the bounds of the queue."""

from service.batching.queue import ItemQueue
from service.batching.request import InferenceRequest, Item
from service.domain.backend import Priority
from tests.service.limits import LIMITS


def push(queue: ItemQueue, num_items: int, deadline: float, priority: Priority = "normal") -> InferenceRequest:
    request = InferenceRequest(num_items, 1, deadline, lambda: None, priority)
    queue.push([Item(b"12345", request, i, 0.0) for i in range(num_items)], 5 * num_items)
    return request


def test_normal_priority_goes_first_then_the_earliest_deadline_then_the_first_come() -> None:
    queue = ItemQueue(LIMITS)
    low, late, early, second = push(queue, 1, 1.0, "low"), push(queue, 2, 9.0), push(queue, 1, 2.0), push(queue, 1, 2.0)
    popped = [queue.pop() for _ in range(5)]
    assert [item.request for item in popped] == [early, second, late, late, low]
    assert [item.index for item in popped[2:4]] == [0, 1], "the items of a request stay together, in order"
    assert (queue.items, queue.num_bytes) == ([], 0)


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
    assert [item.request for item in queue.items] == [expired] * 4
    queue.drop_unwanted(2.0)
    assert queue.has_room(8, 100)
