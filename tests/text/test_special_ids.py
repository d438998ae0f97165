"""Oracle: lists written out by hand."""

import numpy as np

from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, SpecialIds


def test_bos_and_eos_stand_around_a_text_as_far_as_they_exist() -> None:
    assert DEFAULT_SPECIAL_IDS.with_bos_eos([7, 8]) == [2, 7, 8, 3]
    assert DEFAULT_SPECIAL_IDS._replace(bos=None).with_bos_eos(np.array([7])) == [7, 3]
    assert SpecialIds(bos=None, eos=None).with_bos_eos([]) == []
