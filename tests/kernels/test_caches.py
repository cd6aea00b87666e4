"""Tests folders of the user's cache: closed to others, and never somebody else's."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from splatscope.kernels.caches import cache_folder, code_folder, private_folder
from splatscope.kernels.cpu.compile import kernel_folder
from splatscope.kernels.errors import Remark

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no such permissions")


@pytest.fixture
def careless() -> Iterator[None]:
    """Yields a user whose files all may write."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that no file belongs to this user."""
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("careless")
def test_folders_of_the_cache_are_closed_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    folder = cache_folder("cameras")
    assert folder == tmp_path / "new" / "splatscope" / "cameras"
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


@pytest.mark.parametrize("before", [0o777, 0o775, 0o755])
def test_an_open_folder_is_closed_and_code_that_others_may_have_put_there_is_not_kept(
    tmp_path: Path, before: int
) -> None:
    for make in (private_folder, code_folder):
        folder = tmp_path / make.__name__
        folder.mkdir()
        (folder / "kept").touch()
        folder.chmod(before)
        assert mode(make(folder)) == 0o700
        assert (folder / "kept").exists() == (make is private_folder or before == 0o755)


@pytest.mark.usefixtures("somebody_else")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="it belongs to another user"):
        private_folder(tmp_path)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        code_folder(tmp_path)


def test_a_link_changes_nothing_where_it_leads_and_what_others_could_replace_is_refused(tmp_path: Path) -> None:
    target, base = tmp_path / "target", tmp_path / "base"
    target.mkdir(0o755)
    base.mkdir()
    (base / "link").symlink_to(target)
    assert private_folder(base / "link") == base / "link"
    assert mode(target) == 0o755
    base.chmod(0o777)
    with pytest.raises(PermissionError, match="another user may write to the folder above it"):
        private_folder(base / "kernels")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of temporary files; a file blocks the place of the cache of compiled kernels."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    return tmp_path


def test_without_a_cache_kernels_are_kept_in_one_temporary_folder_and_that_is_said(temporary: Path) -> None:
    with pytest.warns(Remark, match=r"^Compiled kernels are kept in .*, because .*file.* NUMBA_CACHE_DIR names"):
        folder = kernel_folder()
    with pytest.warns(Remark):
        assert kernel_folder() == folder, "the next process finds them"
    assert folder.parent == temporary / f"splatscope-{os.geteuid()}"
    assert mode(folder) == mode(folder.parent) == 0o700


@pytest.mark.usefixtures("somebody_else")
def test_kernels_that_another_user_compiled_are_not_run(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(temporary / "theirs"))
    (temporary / "theirs").mkdir()
    with pytest.warns(Remark, match=r"^Kernels are compiled again each time, because .* belongs to another user"):
        folder = kernel_folder()
    assert folder.parent == temporary
    assert mode(folder) == 0o700
    assert not list(folder.iterdir())
