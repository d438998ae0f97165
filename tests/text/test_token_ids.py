"""Ids outside of the vocabulary are reported with where they are and the legal range."""

import pytest

from flaxformer_lite.text.token_ids import check_token_ids


@pytest.mark.parametrize("wrong", [-1, 29, 1000])
def test_an_id_outside_of_the_vocabulary_is_located(wrong: int):
    with pytest.raises(ValueError, match=rf"^prompt 3 has {wrong}, which is no token id: .* between 0 and 28"):
        check_token_ids([0, None, 28, wrong, 99], 29, "prompt 3 has")
    check_token_ids([0, None, 28], 29, "prompt 3 has")
