"""Laws of a session: one at a time in a folder, the settings' hooks before the caller's, nothing held after its end."""

from pathlib import Path

import pytest

from flaxformer_lite.training.hooks import Hook
from flaxformer_lite.training.session import hooks_of, session
from flaxformer_lite.training.view import View
from tests.support.experiments import tiniest_config, with_train

CONFIG = with_train(tiniest_config(), trackers=("tensorboard",))


def test_one_session_at_a_time_holds_a_folder(tmp_path: Path):
    for _ in range(2):
        with session(CONFIG, tmp_path / "run", []) as run:
            assert run.checkpoints.latest() is None and (tmp_path / "run" / "config.json").is_file()
            other = session(CONFIG, tmp_path / "run", [])
            with pytest.raises(ValueError, match=r"another process is training in .*run: .*--workdir"):
                other.__enter__()


def test_the_hooks_of_the_settings_come_first():
    class Own(Hook):
        pass

    kinds = [type(hook).__name__ for hook in hooks_of(with_train(CONFIG, hooks=(Own(),)).train)]
    assert kinds == ["View", "Trackers", "Own"]
    assert [type(hook) for hook in hooks_of(with_train(CONFIG, trackers=()).train)] == [View]
