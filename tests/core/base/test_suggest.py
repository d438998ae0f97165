from flaxformer_lite.core.base.suggest import suggest


def test_suggestions():
    names = ["translate", "train", "trail", "plan"]
    assert suggest("trian", names) == "; perhaps you meant train"
    assert suggest("trai", names, 2) == "; perhaps you meant train or trail"
    assert suggest("xyz", names) == ""
