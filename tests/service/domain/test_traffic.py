"""Weights become slots, and as few of them as possible change hands."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from service.domain.traffic import NUM_SLOTS, Policy, TrafficInvalid, WeightedSplitter, slot_of_key

VERSIONS = ("1.0", "1.1", "1.2", "2.0")


@st.composite
def weights(draw: st.DrawFn) -> dict[str, float]:
    """Weights in steps of 0.01 that sum to 100."""
    cuts = sorted(draw(st.lists(st.integers(0, NUM_SLOTS), min_size=3, max_size=3)))
    edges = [0, *cuts, NUM_SLOTS]
    return {version: (edges[i + 1] - edges[i]) / 100 for i, version in enumerate(VERSIONS)}


@settings(deadline=None)
@given(st.lists(weights(), min_size=1, max_size=12))
def test_a_change_moves_exactly_the_share_that_must_move(steps: list[dict[str, float]]) -> None:
    policy, store = Policy.all_to("1.0"), TypeAdapter(Policy)
    for wanted in steps:
        changed = policy.reweighed(wanted)
        assert changed.weights == {version: weight for version, weight in wanted.items() if weight}
        assert Counter(changed.table) == {v: round(weight * 100) for v, weight in wanted.items() if weight}
        losses = sum(max(policy.weights.get(v, 0) - wanted[v], 0) for v in VERSIONS)
        moved = sum(before != after for before, after in zip(policy.table, changed.table, strict=True))
        assert moved == round(losses * 100)
        policy = store.validate_json(store.dump_json(changed))
        assert policy == changed


def test_of_10000_keys_only_those_of_the_moved_share_change_version() -> None:
    keys = [f"user-{number}".encode() for number in range(10_000)]
    before = Policy.all_to("1.0").reweighed({"1.0": 90, "1.1": 10})
    after = before.reweighed({"1.0": 75, "1.1": 25})
    versions = [(before.table[slot], after.table[slot]) for slot in (slot_of_key("digits", key) for key in keys)]
    counts = Counter(versions)
    assert counts["1.1", "1.0"] == 0
    # Keys are spread like dice: 1,000 and 1,500 of them, give or take three standard deviations.
    assert abs(counts["1.1", "1.1"] - 1000) < 90
    assert abs(counts["1.0", "1.1"] - 1500) < 107


def test_a_key_has_its_slot_for_ever_and_another_one_for_another_model() -> None:
    assert [slot_of_key("digits", key) for key in (b"", b"a", b"user-1")] == [9201, 8624, 5199]
    slots = [(slot_of_key("digits", b"%d" % n), slot_of_key("cats", b"%d" % n)) for n in range(1000)]
    assert sum(a == b for a, b in slots) < 10


def test_what_comes_back_is_what_went_last() -> None:
    policy = Policy.all_to("1.0").reweighed({"1.0": 90, "1.1": 10})
    more = policy.reweighed({"1.0": 75, "1.1": 25})
    assert more.reweighed({"1.0": 90, "1.1": 10}).table == policy.table


def test_the_deck_deals_each_percent_once_in_a_hundred() -> None:
    deck = WeightedSplitter()
    for _ in range(20):
        assert sorted(deck.draw() // 100 for _ in range(100)) == list(range(100))


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"1.0": 99}, "sum to 99"),
        ({"1.0": 101}, "sum to 101"),
        ({"1.0": 110, "1.1": -10}, "1.1 is -10"),
        ({"1.0": 99.999, "1.1": 0.001}, "0.01"),
        ({"1.0": float("nan"), "1.1": 50}, "1.0 is nan"),
        ({"1.0": float("inf")}, "1.0 is inf"),
        ({}, "sum to 0"),
    ],
)
def test_weights_that_make_no_sense_are_named(wanted: dict[str, float], named: str) -> None:
    with pytest.raises(TrafficInvalid, match=named):
        Policy.all_to("1.0").reweighed(wanted)
