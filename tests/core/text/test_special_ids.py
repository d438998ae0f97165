"""Oracle: lists written out by hand."""

import numpy as np
import pytest

from flaxformer_lite.core.text.special_ids import DEFAULT_SPECIAL_IDS, SpecialIds, check_token_ids


def test_bos_and_eos_stand_around_a_text_as_far_as_they_exist() -> None:
    assert DEFAULT_SPECIAL_IDS.with_bos_eos([7, 8]) == [2, 7, 8, 3]
    assert DEFAULT_SPECIAL_IDS._replace(bos=None).with_bos_eos(np.array([7])) == [7, 3]
    assert SpecialIds(bos=None, eos=None).with_bos_eos([]) == []


@pytest.mark.parametrize("wrong", [-1, 29, 1000])
def test_an_id_outside_of_the_vocabulary_is_located(wrong: int):
    with pytest.raises(ValueError, match=rf"^prompt 3 has {wrong}, which is no token id: .* between 0 and 28"):
        check_token_ids([0, None, 28, wrong, 99], 29, "prompt 3 has")
    check_token_ids([0, None, 28], 29, "prompt 3 has")
