"""Runs the process that finds cameras: features, matches and mapping by pycolmap, reported as JSON lines on stdout.

It is a separate process because pycolmap cannot be interrupted, ends its process on some errors, and blocks everything
while it works. It ends with the process that started it. Its database keeps what is done, so a second run continues
there. `search.py` starts it, makes its folder and reads its lines; read that first.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splatscope.assets.capture import Mask
from splatscope.assets.lens import colmap_library
from splatscope.assets.photographs.images import (
    camera_key,
    image_size,
    read_image,
    stored_upright,
    write_png,
    write_turned,
)
from splatscope.assets.photographs.masks import kept_by
from splatscope.kernels.errors import InputError

LARGEST = 1600  # px of the longer side at which features are extracted, the size for training
FEATURES = 4096  # most features of a photograph, the strongest
ALL_PAIRS = 100  # photographs up to which every pair is tried
NEIGHBOURS = 10  # following photographs, by name, that each is paired with
ALIKE = 30  # most similar photographs that each is paired with
WORDS, SAMPLED = 64, 400  # k-means centres that describe a photograph; features of each used to find them
PAIRS_AT_ONCE = (20, 100)  # least and most; else a tenth of all, so that progress is reported
FEWEST_MATCHES = 15  # matches that a pair needs, as in COLMAP
FEWEST_PLACED = 3  # photographs that a model needs
_CONVERTED = (".webp", ".jp2", ".j2k")  # pycolmap does not read these


@dataclass(frozen=True)
class Job:
    """Holds the task of a search; `job.json` in its working folder."""

    photographs: Sequence[Path]
    masks: Sequence[Mask | None]  # one for each photograph
    inverted: bool = False  # only what the masks leave out counts

    def write(self, work: Path) -> None:
        """Writes the job for the other process."""
        photographs = [os.path.abspath(path) for path in self.photographs]
        masks = [m and (os.path.abspath(m.path), m.orientation, m.is_dynamic) for m in self.masks]
        content = {"photographs": photographs, "masks": masks, "inverted": self.inverted}
        (work / "job.json").write_text(json.dumps(content), encoding="utf-8")

    @staticmethod
    def read(work: Path) -> Job:
        """Reads a written job."""
        content = json.loads((work / "job.json").read_text(encoding="utf-8"))
        masks = [m and Mask(Path(m[0]), *m[1:]) for m in content["masks"]]
        return Job([Path(path) for path in content["photographs"]], masks, content["inverted"])


def main() -> None:
    """Runs `sfm_worker WORK`: WORK/job.json names the photographs; the result is WORK/model."""
    work = Path(sys.argv[1])
    tell = _Teller()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = Job.read(work)
    groups = _lay_out(job, work / "photographs", work / "masks", tell)
    names = [name for group in groups for name in group]
    if len(names) < FEWEST_PLACED:
        tell(problem="unreadable", readable=len(names))
        return
    pycolmap = colmap_library()
    pycolmap.set_random_seed(0)
    database = work / "database.db"
    masks = work / "masks" if any(job.masks) else None
    _extract(pycolmap, database, work / "photographs", masks, groups, tell)
    _match(pycolmap, database, work, sorted(names), tell)
    with pycolmap.Database.open(database) as opened:
        counts = opened.read_two_view_geometry_num_inliers()[1]
    if not any(count >= FEWEST_MATCHES for count in counts):
        tell(problem="no pair")
        return
    models = _map(pycolmap, database, work, len(names), tell)
    if not models:
        tell(problem="no model")
        return
    best = max(models, key=lambda model: (model.num_reg_images(), model.num_points3D()))
    (work / "model").mkdir(exist_ok=True)
    best.write_binary(work / "model")
    placed = {best.image(number).name for number in best.reg_image_ids()}
    tell(
        placed=sorted(placed),
        points=best.num_points3D(),
        error=best.compute_mean_reprojection_error(),
        others=sorted((model.num_reg_images() for model in models if model is not best), reverse=True),
    )


class _Teller:
    """Writes a JSON object a line to the original stdout; what libraries print goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def __call__(self, **values: object) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()

    def progress(self, stage: str, done: int, total: int) -> None:
        self(stage=stage, done=done, total=total)


def _end_with_parent() -> None:
    """Ends this process when stdin closes: nothing is ever written to it, so the parent has ended."""
    sys.stdin.buffer.read()
    os._exit(1)


def laid_out_name(number: int, path: Path) -> str:
    """Returns the name of photograph `number` in a model. pycolmap's lists allow no spaces, its models only UTF-8."""
    suffix = path.suffix.lower()
    return f"{number:06}{'.png' if suffix in _CONVERTED else suffix}"


def _lay_out(job: Job, folder: Path, masks: Path, tell: _Teller) -> list[list[str]]:
    """Links to the photographs under names that pycolmap can read, grouped by camera.

    Photographs of the same size, and the same lens as far as their EXIF says, form a group. Damaged ones are left out.
    If any has a mask, masks for all are written to the other folder.
    """
    folder.mkdir(exist_ok=True)
    groups: dict[object, list[str]] = {}
    for number, (path, mask) in enumerate(zip(job.photographs, job.masks, strict=True)):
        place = folder / laid_out_name(number, path)
        with suppress(InputError):
            camera = camera_key(path)
            if not place.is_file():
                lay_one_out(path, place)
            of_it = masks / f"{place.name}.png"
            if any(job.masks) and not of_it.is_file():
                lay_mask_out(mask, job.inverted, place, of_it)
            groups.setdefault(camera, []).append(place.name)
        tell.progress("reading", number + 1, len(job.photographs))
    return list(groups.values())


def lay_one_out(path: Path, place: Path) -> None:
    """Puts the photograph, turned as its EXIF tag says, where pycolmap finds it. Raises InputError."""
    if path.suffix.lower() in _CONVERTED:
        write_png(place, read_image(path, turned=True)[..., :3], compress_level=1)
        return
    if not stored_upright(path):  # pycolmap ignores EXIF: it would be sideways, upside down or mirrored
        write_turned(path, place)
        return
    try:
        place.symlink_to(path)
    except OSError:  # Windows lets only some users make links
        shutil.copyfile(path, place)


def lay_mask_out(mask: Mask | None, inverted: bool, photograph: Path, place: Path) -> None:
    """Writes the mask of a laid out photograph as pycolmap wants it: 0 where it does not count, else 255.

    Without a readable mask, all of it counts. Without a file, pycolmap would leave the photograph out.
    """
    width, height = image_size(photograph)
    kept = np.ones((height, width), np.bool_)
    if mask is not None:
        with suppress(InputError):
            kept = kept_by(mask, inverted)
    write_png(place, kept * np.uint8(255), compress_level=1)


def _extract(
    pycolmap: Any, database: Path, photographs: Path, masks: Path | None, groups: list[list[str]], tell: _Teller
) -> None:
    """Extracts features of every photograph where its mask is not 0. Photographs of a group share a camera."""
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size = LARGEST
    options.sift.max_num_features = FEATURES
    cameras = _known(pycolmap, database)
    total, done = sum(map(len, groups)), len(cameras)
    tell.progress("features", done, total)
    for group in groups:
        left = [name for name in group if name not in cameras]
        for chunk in _chunks(left, 2 * (os.cpu_count() or 1)):
            reader = pycolmap.ImageReaderOptions()
            shared = next((cameras[name] for name in group if name in cameras), None)
            if shared is not None:
                reader.existing_camera_id = shared
            if masks is not None:
                reader.mask_path = masks
            pycolmap.extract_features(
                database,
                photographs,
                image_names=chunk,
                camera_mode=pycolmap.CameraMode.SINGLE,
                reader_options=reader,
                extraction_options=options,
            )
            cameras = _known(pycolmap, database)
            done += len(chunk)
            tell.progress("features", done, total)


def _known(pycolmap: Any, database: Path) -> dict[str, int]:
    """Returns the photographs in the database, and the camera of each."""
    with pycolmap.Database.open(database) as opened:
        return {image.name: image.camera_id for image in opened.read_all_images()}


def _match(pycolmap: Any, database: Path, work: Path, names: Sequence[str], tell: _Teller) -> None:
    """Matches all pairs; of many photographs only pairs that are likely to show the same."""
    if len(names) <= ALL_PAIRS:
        pairs = list(itertools.combinations(names, 2))
    else:
        with pycolmap.Database.open(database) as opened:
            numbers = {image.name: image.image_id for image in opened.read_all_images()}
            found = [name for name in names if name in numbers]
            rng = np.random.default_rng(0)
            every = (opened.read_descriptors(numbers[name]).data for name in found)
            descriptors = [some[rng.permutation(len(some))[: 4 * SAMPLED]] for some in every]
        pairs = likely_pairs(found, descriptors)
    listed, options = work / "pairs.txt", pycolmap.ImportedPairingOptions()
    options.match_list_path = listed
    tell.progress("matching", 0, len(pairs))
    done = 0
    for chunk in _chunks(pairs, max(PAIRS_AT_ONCE[0], min(PAIRS_AT_ONCE[1], len(pairs) // 10))):
        listed.write_text("".join(f"{first} {second}\n" for first, second in chunk), encoding="utf-8")
        pycolmap.match_image_pairs(database, pairing_options=options)
        done += len(chunk)
        tell.progress("matching", done, len(pairs))


def likely_pairs(names: Sequence[str], descriptors: Sequence[NDArray[np.uint8]]) -> list[tuple[str, str]]:
    """Returns pairs of each photograph with those that follow by name and those whose features are most alike.

    `descriptors` uint8 [F, 128] of each, in any order. A photograph is described by the sums of its features' offsets
    from common centres (a vector of locally aggregated descriptors, Jegou et al. 2010).
    """
    from scipy.cluster.vq import kmeans2, vq

    rng = np.random.default_rng(0)
    sample = rng.permutation(np.concatenate([some[:SAMPLED] for some in descriptors])).astype(np.float32)
    centres, _ = kmeans2(sample, sample[:WORDS], iter=10, minit="matrix")
    described = np.zeros((len(names), WORDS, 128), np.float32)
    for row, some in zip(described, descriptors, strict=True):
        if len(some):
            features = some.astype(np.float32)
            words = vq(features, centres)[0]
            np.add.at(row, words, features - centres[words])
    described = np.sign(described) * np.sqrt(np.abs(described))
    flat = described.reshape(len(names), -1)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
    similarity = flat @ flat.T
    np.fill_diagonal(similarity, -np.inf)
    pairs = {(k, other) for k in range(len(names)) for other in range(k + 1, min(k + 1 + NEIGHBOURS, len(names)))}
    for k, row in enumerate(similarity):
        pairs |= {(min(k, int(other)), max(k, int(other))) for other in np.argsort(-row)[:ALIKE]}
    return [(names[first], names[second]) for first, second in sorted(pairs)]


def _map(pycolmap: Any, database: Path, work: Path, total: int, tell: _Teller) -> list[Any]:
    """Returns the models in which photographs were placed."""
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = FEWEST_PLACED
    options.random_seed = 0
    placed = most = 0  # photographs in the model that grows now, and in the largest so far

    def began() -> None:
        nonlocal placed
        placed = 1
        placed_another()

    def placed_another() -> None:
        nonlocal placed, most
        placed += 1
        most = max(most, placed)
        tell.progress("placing", most, total)

    tell.progress("placing", 0, total)
    (work / "models").mkdir(exist_ok=True)
    models = pycolmap.incremental_mapping(
        database,
        work / "photographs",
        work / "models",
        options,
        initial_image_pair_callback=began,
        next_image_callback=placed_another,
    )
    return [model for model in models.values() if model.num_reg_images() >= FEWEST_PLACED]


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


if __name__ == "__main__":
    main()
