"""The bounded mapping."""

from service.domain.recent import Recent


def test_what_is_asked_for_stays_and_the_rest_goes() -> None:
    table: Recent[int, str] = Recent(10)
    table.put(-1, "asked for")
    for number in range(1000):
        table.put(number, "asked for once")
        assert table.get(-1) == "asked for"
        assert len(table) <= 20
    assert all(table.get(number) for number in range(991, 1000))
    assert table.get(0) is None
    assert table
    assert not Recent(1)
