"""Callers without a key."""

import pytest

from service.admin.addresses import MOST_ADDRESSES, Addresses
from service.domain.caller import Caller


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "", True),
        ("", "192.0.2.1", False),
    ],
)
def test_an_address_is_a_caller_and_so_is_a_network_of_ipv6(one: str, other: str, is_same: bool) -> None:
    addresses = Addresses(Caller)
    assert (addresses.caller(one) is addresses.caller(other)) == is_same
    assert addresses.caller(one) is addresses.caller(one)


def test_however_many_there_are_the_table_is_bounded() -> None:
    addresses = Addresses(Caller)
    known = addresses.caller("192.0.2.1")
    for number in range(3 * MOST_ADDRESSES):
        addresses.caller(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert addresses.caller("192.0.2.1") is known
    assert len(addresses.known) <= 2 * MOST_ADDRESSES
