"""Reads COLMAP datasets: a folder in, a `Capture` out.

Decides which model and which photographs are meant. `model.py` reads a model, and `photographs/find.py` fits cameras to
photographs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from splatscope.assets.capture import IMAGES, Capture, Census, View
from splatscope.assets.checks.agreement import fitted
from splatscope.assets.choices import AxesChoice
from splatscope.assets.colmap.model import model_suffix, points, read_model, registered_count
from splatscope.assets.geometry.recentre import recentred
from splatscope.assets.photographs.find import MASK_FOLDERS, Photographs, Shot, all_have_alpha, match_views, pair_views
from splatscope.assets.photographs.images import EXTENSIONS
from splatscope.assets.photographs.masks import Masks
from splatscope.assets.sfm.search import FoundCameras
from splatscope.kernels.errors import InputError
from splatscope.kernels.wording import counted

_INSIDE_A_DATASET = ("sparse", "distorted", "colmap")  # folders whose photographs are in a folder above
_UNDISTORTED = "dense"  # where COLMAP's automatic reconstruction puts undistorted photographs
_MODEL_FILES = ("cameras", "images", "points3D")  # points3D is optional
_BEFORE_UNDISTORTION = (
    "distorted"  # where Inria's app/commands/convert.py leaves the models of the photographs in `input`
)


def find_models(path: Path) -> list[Path]:
    """Returns the COLMAP models that a folder means: `sparse/*`, else `sparse`, else the folder itself; may be empty.

    Models in `distorted/sparse/*` are added if one of them registers more photographs.
    """
    models = _models_at(path)
    before = _models_at(path / _BEFORE_UNDISTORTION) if models and models != [path] else []
    if before and max(map(registered_count, before)) > max(map(registered_count, models)):
        models += before
    return models


def undistorted_copies(path: Path) -> list[Path]:
    """Returns folders in which COLMAP left undistorted photographs and their model: `dense`, else `dense/*`."""
    dense = path / _UNDISTORTED
    return [folder for folder in ([dense] if _models_at(dense) else _subfolders(dense)) if _models_at(folder)]


def refuse_half_a_model(path: Path) -> None:
    """Raises InputError if a folder has some files of a COLMAP model, but lacks files without which none opens."""
    roots = (path, path / _UNDISTORTED, *_subfolders(path / _UNDISTORTED), path / _BEFORE_UNDISTORTION)
    folders = [folder for root in roots for folder in (*_subfolders(_sparse(root)), _sparse(root), root)]
    for half in _half_models(dict.fromkeys(folders)):
        raise InputError(
            f"{half} Copy what is missing, or move what is there away to have cameras found from the photographs alone."
        )


def _half_models(folders: Iterable[Path]) -> Iterator[str]:
    """Yields a sentence for each folder with some files of a COLMAP model that is not whole."""
    for folder in folders:
        for suffix in () if model_suffix(folder) else (".bin", ".txt"):
            there = [f"{name}{suffix}" for name in _MODEL_FILES if (folder / f"{name}{suffix}").is_file()]
            lost = [f"{name}{suffix}" for name in _MODEL_FILES[:2] if f"{name}{suffix}" not in there]
            is_other = "sparse" not in (folder.name, folder.parent.name) and there in (["cameras.txt"], ["images.txt"])
            if there and not is_other:  # lists of other programs may have these names
                has = f"it has {' and '.join(there)} but no {' and no '.join(lost)}"
                yield f"{folder} is not a whole COLMAP model: {has}."


def read_colmap(path: Path | str, images: str = IMAGES, axes: AxesChoice = "auto") -> Capture:
    """Reads a dataset folder (`sparse/0`, `sparse`) or a model folder, with photographs from `images`.

    Of several models, the one with most registered photographs is taken. Undistorted copies in `dense` are read if
    there is no other model, or no photographs of it. Lenses are scaled to the real size of each photograph. `axes` as
    for `agreement.fitted`. Raises InputError for damaged files and if there are no photographs.
    """
    path = Path(path)
    models = find_models(path)
    warnings = []
    if not (path / images).is_dir() or not models:
        copies = undistorted_copies(path)
        if models:
            copies = [copy for copy in copies if (copy / images).is_dir()]
            if copies:
                warnings.append(f"There is no folder {images}; the undistorted photographs in {_UNDISTORTED} are used.")
        models = [model for copy in copies for model in _models_at(copy)] or models
    if not models:
        refuse_half_a_model(path)
        raise InputError(
            f"{path} holds no COLMAP model. Looked for cameras and images (.bin or .txt) in sparse/0, sparse and "
            "the folder itself."
        )
    counts = {model: registered_count(model) for model in models}
    model = max(models, key=lambda m: counts[m])
    names = {m: m.relative_to(path).as_posix().removeprefix("sparse/") if m != path else m.name for m in models}
    if len(models) > 1:
        others = ", ".join(f"{names[m]} ({counts[m]})" for m in models if m != model)
        warnings.append(
            f"{len(models)} COLMAP models found; using {names[model]} with {counted(counts[model], 'photograph')}, "
            f"not {others}. To use another, open its folder."
        )
    read = read_model(model)
    taken = read.shots
    warnings += [*_half_models(_subfolders(_sparse(path))), *read.warnings]
    folder, looked_in, more = _find_images(path, model, images, [shot.name for shot in taken])
    photographs = Photographs(folder)
    masks = Masks(photographs, beside=folder != path)
    keys = _llff_copies(path, photographs, taken)
    if keys:
        views, found_warnings, census = pair_views(photographs, taken, keys, looked_in, masks.of)
        found_warnings.insert(0, f"The photographs in {folder} have other names, so they are paired in order.")
    else:
        views, found_warnings, census = match_views(photographs, taken, looked_in, True, masks.of)
    warnings += [*more, *found_warnings, *masks.sentences()]
    poseless = {photographs.find(name) for name, _ in read.left_out} - {photographs.find(shot.name) for shot in taken}
    registered = census.registered + len(read.left_out)
    census = replace(census, registered=registered, unused=census.unused - len(poseless - {None}))
    if census.unused:
        warnings.append(
            f"Not used: {census.unused} of {counted(len(photographs.paths), 'photograph')} in {folder}, which have no "
            f"camera in {model}. If they matter, run COLMAP again."
        )
    ordered = [model, *(m for m in models if m != model)]
    census = replace(census, models=tuple((names[m], counts[m]) for m in ordered))
    return _capture(path, views, model, str(model), warnings, census, axes)


def read_found(path: Path, folder: Path, found: FoundCameras) -> Capture:
    """Reads the photographs in `folder` with the cameras that a search found. Raises InputError."""
    read = read_model(found.model)
    upright = found.upright or None
    taken = [replace(s, name=found.names[s.name], upright=upright) for s in read.shots]
    photographs = Photographs(folder)
    masks = Masks(photographs, beside=folder != path)
    views, warnings, census = match_views(photographs, taken, str(folder), False, masks.of)
    warnings = [*filter(None, [found.remark()]), *read.warnings, *warnings, *masks.sentences()]
    return _capture(path, views, found.model, "The reconstruction of these photographs", warnings, census)


def _capture(
    path: Path,
    views: tuple[View, ...],
    model: Path,
    where: str,
    warnings: list[str],
    census: Census,
    axes: AxesChoice = "auto",
) -> Capture:
    cloud, remarks = points(model)
    warnings += remarks
    if lack := "no 3D points" if cloud is None else cloud.lack:
        warnings.append(f"{where} has {lack}, so splats will start at random positions.")
    capture = Capture(path, "colmap", views, (), cloud, all_have_alpha(views), warnings=tuple(warnings), census=census)
    return recentred(fitted(capture, "opencv", axes))


def _models_at(path: Path) -> list[Path]:
    sparse = _sparse(path)
    for candidates in (_subfolders(sparse), [sparse], [path]):
        models = [folder for folder in candidates if model_suffix(folder)]
        if models:
            return models
    return []


def _sparse(path: Path) -> Path:
    return path if path.name == "sparse" else path / "sparse"


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []


def _find_images(path: Path, model: Path, images: str, wanted: Sequence[str]) -> tuple[Path, str, list[str]]:
    """Returns the folder of photographs, the places looked at in words, and warnings."""
    distorted = _BEFORE_UNDISTORTION in model.absolute().parts[-3:-1]
    dense = _dense_around(model, path)
    if dense is not None:
        roots = _upwards(model)[: _upwards(model).index(dense) + 2]
    elif path == model or path.name in _INSIDE_A_DATASET:
        roots = [path, *_upwards(path)[1 : 4 if distorted else 3]]
    else:
        roots = [path]
    names = ("input", images) if distorted and images == IMAGES else (images,)
    for folder in (root / name for root in roots for name in names):
        if folder.is_dir():
            beside = dense is not None and folder.parent == dense.parent
            if beside and images == IMAGES and _holds_images(path):
                break
            said = f"{dense} has no photographs of its own; those in {folder} are used and should be undistorted ones."
            return folder, str(folder), [said] if beside else []
    if images == IMAGES and _holds_images(path):
        return path, str(path), []
    elsewhere = (*MASK_FOLDERS, _UNDISTORTED) if undistorted_copies(path) else MASK_FOLDERS
    below = [child for child in _subfolders(path) if child.name.casefold() not in elsewhere]
    others = [other for other in map(Photographs, below) if other.paths]
    if images == IMAGES:
        found = {other.folder: sum(map(bool, map(other.find, wanted))) for other in others}
        best = max(found, key=lambda folder: found[folder], default=None)
        if best is not None and found[best]:
            return best, str(best), [f"There is no folder {images}; photographs are taken from {best.name}."]
    looked = ", ".join(str(root / images) for root in roots)
    names = ", ".join(other.folder.name for other in others)
    hint = f" Photographs lie in {names}: name that folder with --images." if others else ""
    raise InputError(f"{path} has a COLMAP model but no folder of photographs. Looked for {looked}.{hint}")


def _dense_around(model: Path, path: Path) -> Path | None:
    """Returns the folder `dense` of COLMAP that holds the model, or None.

    It must be below the path that was opened, or laid out as COLMAP does it: any other folder may have that name too.
    """
    dense = next((folder for folder in _upwards(model)[:4] if folder.name == _UNDISTORTED), None)
    if dense is None or dense not in path.absolute().parents:
        return dense
    inside = model.absolute().relative_to(dense).as_posix()
    return dense if re.fullmatch(r"(\d+/)?sparse(/\d+)?|\d+", inside) else None


def _upwards(folder: Path) -> list[Path]:
    return [folder.absolute(), *folder.absolute().parents]


def _holds_images(folder: Path) -> bool:
    return any(child.suffix.lower() in EXTENSIONS for child in folder.iterdir())


def _llff_copies(path: Path, photographs: Photographs, taken: Sequence[Shot]) -> dict[str, str | None]:
    """Returns shot -> photograph by order, for a capture of LLFF whose photographs fit no name; else empty.

    LLFF numbers its smaller copies (`images_4/image000.png`) in the order of the originals.
    """
    names = [shot.name for shot in taken]
    if not (path / "poses_bounds.npy").is_file() or any(map(photographs.find, names)):
        return {}
    stored = sorted(photographs.paths)
    originals = Photographs(path / IMAGES)
    keys = {name: originals.find(name) or name for name in names}
    order = sorted(originals.paths) or sorted(names)
    if len(order) != len(stored):
        return {}
    return {name: stored[order.index(key)] if key in order else None for name, key in keys.items()}
