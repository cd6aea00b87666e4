"""Writes splats as another PLY: `splatscope convert`.

Kept values keep their bits, and comments are kept. Other properties are left out, and a line names them. The file
formats are in `assets/splats/ply.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatscope.app.options.convert import ConvertOptions
from splatscope.app.terminal import say, warn
from splatscope.assets.formats import SplatFile, open_path, reread
from splatscope.assets.splats.ply import write_ply
from splatscope.assets.splats.ply_header import shown_name
from splatscope.assets.splats.ply_table import open_vertices, read_comments
from splatscope.assets.splats.read_as import ReadAs
from splatscope.assets.splats.usable import unusable_in_words, usable_rows
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import GAUSSIAN_ARRAYS, Gaussians
from splatscope.kernels.wording import counted
from splatscope.training.files.checkpoint import read_checkpoint


@np.errstate(over="ignore", invalid="ignore")  # numbers of damaged files are kept, with a warning
def run(options: ConvertOptions) -> None:
    """Reads the splats, changes what was asked for, writes them and prints what the file holds. Raises InputError."""
    target = options.target
    if target.suffix.lower() != ".ply":
        raise InputError(f"convert writes .ply files, got {target}.")
    if target.exists() and not options.overwrite:
        raise InputError(f"{target} exists; give --overwrite to replace it, or another name.")
    if options.sh_degree is not None and not 0 <= options.sh_degree <= 3:
        raise InputError(f"--sh-degree must be from 0 to 3, got {options.sh_degree}.")
    if options.min_opacity is not None and not 0 <= options.min_opacity < 1:
        raise InputError(f"--min-opacity must be at least 0 and less than 1, got {options.min_opacity}.")
    opened = _open(options.source, ReadAs(options.activated, options.primitive))
    gaussians = opened.gaussians
    if options.min_opacity is not None:
        gaussians = without_faint(gaussians, options.min_opacity)
    if options.sh_degree is not None:
        gaussians = gaussians.with_sh_degree(options.sh_degree)
    is_ply = opened.path.suffix.lower() == ".ply"
    comments = read_comments(opened.path) if is_ply else ()
    # Read before anything is written: the file may be the target.
    extra = [name for name in open_vertices(opened.path).names if not _is_ours(name)] if is_ply else []
    write_ply(target, gaussians, comments, opened.offset, options.encoding == "ascii", opened.filter)
    if opened.reading:
        warn([opened.reading])
    unusable = unusable_in_words(target, gaussians, usable_rows(gaussians))
    if unusable:
        warn([f"Not usable, but kept: {unusable}."])
    pruned = opened.gaussians.count - gaussians.count
    words = f"{counted(gaussians.count, 'splat')}, SH degree {gaussians.sh_degree}"
    words += f", {pruned:,} fainter than {options.min_opacity:g} left out" if pruned else ""
    words += f"; not kept: {', '.join(map(shown_name, extra[:8]))}{' …' if len(extra) > 8 else ''}" if extra else ""
    say([f"Wrote {target}: {words}."])


def _open(path: Path, read_as: ReadAs) -> SplatFile:
    if path.suffix.lower() == ".pt":
        checkpoint = read_checkpoint(path)
        raw = {name: checkpoint.tensors[f"raw.{name}"].numpy() for name in GAUSSIAN_ARRAYS}
        x, y, z = checkpoint.info["offset"]
        black, gaussians = (0.0, 0.0, 0.0), Gaussians(*raw.values(), primitive=checkpoint.primitive)
        return SplatFile(
            path, "splats", gaussians, (), black, checkpoint.iteration, offset=(x, y, z), filter=checkpoint.filter
        )
    opened = reread(open_path(path), read_as)
    if not isinstance(opened, SplatFile):
        raise InputError(f"{path} is a capture, not splats; convert takes a .ply, a model folder or a checkpoint.")
    return opened


def without_faint(gaussians: Gaussians, opacity: float) -> Gaussians:
    """Returns the splats of at least this opacity. Raises InputError if none is left."""
    kept = 1 / (1 + np.exp(-gaussians.logit_opacities.astype(np.float64))) >= opacity
    if not kept.any():
        raise InputError(f"--min-opacity {opacity:g} leaves no splat; all {gaussians.count:,} are fainter.")
    return gaussians.with_arrays({name: array[kept] for name, array in gaussians.arrays.items()})


def _is_ours(name: str) -> bool:
    """Returns True for a property of splats, and for the normals, which are always written."""
    stem = name.rstrip("0123456789")
    return name in ("x", "y", "z", "nx", "ny", "nz", "opacity") or stem in ("f_dc_", "f_rest_", "scale_", "rot_")
