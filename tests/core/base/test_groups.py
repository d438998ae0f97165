"""Oracle: groups written by hand."""

from flaxformer_lite.core.base.groups import groups_of


def test_groups_come_in_the_order_of_their_first_members():
    assert list(groups_of("bacaab").items()) == [("b", [0, 5]), ("a", [1, 3, 4]), ("c", [2])]
    assert groups_of([]) == {}
