"""Laws: a file or folder appears complete or not at all, and nothing is left of a failure."""

from pathlib import Path

import pytest

from flaxformer_lite.base.atomic_files import atomic_write, require_absent, write_whole


def test_it_appears_at_the_end(tmp_path: Path):
    target = tmp_path / "new" / "folder"
    with atomic_write(target) as unfinished:
        unfinished.mkdir()
        (unfinished / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1" and list(target.parent.iterdir()) == [target]
    write_whole(tmp_path / "file", "ß")
    write_whole(tmp_path / "file", "ü")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "ü"


@pytest.mark.parametrize("folder", [True, False])
def test_nothing_is_left_of_a_failure(tmp_path: Path, folder: bool):
    def fail() -> None:
        with atomic_write(tmp_path / "x") as unfinished:
            unfinished.mkdir() if folder else unfinished.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_created_is_refused(tmp_path: Path):
    require_absent(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file exists already: give a file that does not exist$"):
        require_absent(tmp_path / "file", "file")
    with pytest.raises(ValueError, match=r"x cannot be created: .*/file is no folder$"):
        require_absent(tmp_path / "file" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"link exists already: give a folder that does not exist$"):
        require_absent(tmp_path / "link")


def test_a_url_is_refused_before_a_folder_is_made_for_its_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for path in Path("gs://bucket/run"), Path("simplecache::s3://bucket/run"):
        with pytest.raises(ValueError, match=r"://bucket/run is a URL, and this is written to the local disk only"):
            write_whole(path, "")
        with pytest.raises(ValueError, match="is a URL"):
            require_absent(path)
    assert list(tmp_path.iterdir()) == []
    write_whole(Path("a:b/x"), "")
