"""Laws of values that a process makes once."""

from flaxformer_lite.core.base.once import KEPT_VALUES, once


def test_equal_arguments_have_one_value_and_the_oldest_is_forgotten():
    made = []

    @once
    def value(number: object) -> list[object]:
        made.append(number)
        return [number]

    assert value(1) is value(1) and value(1) is not value(2) and made == [1, 2]
    for number in range(3, KEPT_VALUES + 2):
        value(number)
    value(2)
    value(1)
    assert made == [*range(1, KEPT_VALUES + 2), 1]


def test_arguments_without_a_hash_are_taken_as_they_are():
    made = []

    @once
    def value(given: list[int]) -> int:
        made.append(given)
        return len(given)

    assert (value([1]), value([1])) == (1, 1) and len(made) == 2
