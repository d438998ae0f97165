import pytest

from flaxformer_lite.core.search import Forced, Request
from flaxformer_lite.core.search.request import requests_in_order


def test_requests_in_order_differ_by_their_index():
    first, second = requests_in_order([[5], [6, 7]], seed=3, first=8)
    assert first == Request([5], None, None, 3, 8, Forced()) and second == Request([6, 7], seed=3, index=9)


def test_a_request_says_what_it_has_by_itself():
    assert Request([5]) == Request(source=[5], settings=None, limit=None, seed=0, index=None, forced=Forced())
    with pytest.raises(TypeError):
        Request()  # type: ignore[call-arg]


def test_ids_alone_are_a_request_and_have_the_number_of_their_place():
    asked = Request([5], index=7)
    assert Request.of([5]) == Request([5]) and Request.of(asked) is asked
    assert (Request([5]).number(3), asked.number(3)) == (3, 7)
