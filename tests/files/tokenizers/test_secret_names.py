from flaxformer_lite.files.tokenizers.secret_names import secret_names


def test_names_are_new_each_time_and_none_is_in_another():
    first, again = (secret_names(["<s>", "</s>", "<pad>"]) for _ in range(2))
    names = [*first.values(), *again.values()]
    assert first.keys() == {"<s>", "</s>", "<pad>"} and len({*names}) == 6
    assert not any(one in other for one in names for other in names if one != other)
