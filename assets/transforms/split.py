"""Decides which photographs of a transforms capture are trained on and which are held out.

nerfstudio lists them; Blender writes two files. Shots are known here by their photographs, so different spellings of a
path do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from splatscope.assets.photographs.find import Shot
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_TRAIN, _VAL, _TEST = "train_filenames", "val_filenames", "test_filenames"
Shots = dict[str, Shot]  # photograph -> shot


def listed_split(
    shots: Shots, content: Mapping[str, Any], photograph_of: Callable[[str], str], where: str
) -> tuple[Shots, Shots, list[str]]:
    """Returns (to train on, to test with, warnings) by the lists of a transforms.json. Without lists, all are trained
    on.

    `photograph_of` finds the photograph of a path. Photographs to test with are in test_filenames, or else in
    val_filenames. Raises InputError for anything but a list of paths.
    """
    lists = {key: _paths(content, key, where) for key in (_TRAIN, _VAL, _TEST)}
    named = {key: {photograph_of(path): path for path in paths} for key, paths in lists.items()}
    strange = {
        photograph: (key, path) for key in named for photograph, path in named[key].items() if photograph not in shots
    }
    warnings = []
    if strange:
        key, path = next(iter(strange.values()))
        count = counted(len(strange), "name")
        warnings.append(f"No frame has the path that the split lists: {count}, for example {path} in {key}.")
    tests = {key: shots.keys() & named[key].keys() for key in (_TEST, _VAL)}
    chosen = _TEST if tests[_TEST] else _VAL
    trained = shots.keys() & named[_TRAIN].keys() if lists[_TRAIN] else shots.keys() - tests[_TEST] - tests[_VAL]
    training, test = _without(shots, shots.keys() - trained), _without(shots, shots.keys() - tests[chosen])
    left = list(_without(shots, training.keys() | test.keys()))
    if not training:
        return shots, {}, [*warnings, f"Not followed, for it leaves nothing to train on: the split that {where} lists."]
    if left:
        some = f"{counted(len(left), 'photograph')}, for example {left[0]}"
        warnings.append(f"Left out, as {where} lists them neither for training nor as tests: {some}.")
    training, test, more = held_apart(training, test, f"{_TRAIN} and {chosen}")
    return training, test, warnings + more


def held_apart(training: Shots, test: Shots, both: str) -> tuple[Shots, Shots, list[str]]:
    """Returns (to train on, to test with, warnings), with no photograph in both; `both` names where they come from."""
    shared = training.keys() & test.keys()
    count = counted(len(shared), "photograph")
    if not shared:
        return training, test, []
    if len(shared) < len(training):
        return _without(training, shared), test, [f"Held out, being in both {both}: {count}."]
    return training, _without(test, shared), [f"Not held out, being all there is to train on: {count} in both {both}."]


def _without(shots: Shots, photographs: Set[str]) -> Shots:
    return {photograph: shot for photograph, shot in shots.items() if photograph not in photographs}


def _paths(content: Mapping[str, Any], key: str, where: str) -> list[str]:
    paths = content.get(key, [])
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise InputError(f"{where}: {key} must be a list of paths of photographs.")
    return paths
