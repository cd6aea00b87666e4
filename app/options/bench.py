"""Declares the options of `splatscope bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import UseAppendAction, arg

from splatscope.app.options.fields import optional, repeated

Stage = Literal["blend_backward", "sort"]
Peer = Literal["all", "gsplat", "inria", "faster_gs"]


@dataclass(frozen=True)
class BenchOptions:
    """Check and time rendering, forward and backward, and a training step; prints tables."""

    cpu: bool = False
    """Time the CPU backend; the default."""
    ladder: bool = False
    """On a GPU: time every preset from s00 to best on the scenes, stage by stage."""
    ablate: Annotated[tuple[Stage, ...], UseAppendAction, repeated(Stage, "{blend_backward,sort}")] = ()
    """On a GPU: take a stage apart and say what each part of it costs."""
    kernels: bool = False
    """Without a GPU: registers and occupancy of every preset's kernels on seven architectures."""
    steps: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME")] = ()
    """With --ladder, --kernels or --ablate, only these presets, for example s00 s06 best; all, or best for the last,
    unless given."""
    schedule: bool = False
    """On a GPU: time ways to hand out tiles and chunks against the grid, on the scenes and on crowded:RATIO, for
    example crowded:10; with --out also figures, which need matplotlib. With --from-json, from those files."""
    calibrate: bool = False
    """On a GPU: measure what the policy that splits heavy tiles must know of it, and keep that."""
    step: Annotated[str, arg(metavar="NAME")] = "best"
    """The preset that --toggle starts from."""
    toggle: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "STAGE.FIELD=VALUE")] = ()
    """With --ladder or --ablate, one more row: --step with these toggles on top, for example blend.map=columns_8x8.
    With --train, what steps and runs on a GPU are made with."""
    toggles: bool = False
    """With --ladder, also the best preset with each toggle at each of its other values."""
    vs: Annotated[tuple[Peer, ...], UseAppendAction, repeated(Peer, "{all,gsplat,inria,faster_gs}")] = ()
    """With --ladder, also these rasterisers on the same tensors, where they are installed."""
    scenes: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME")] = ()
    """Benchmark scenes (small, S4, S1, S2, S3, S1m, S2m), and on a GPU splat files too; S1 to S4 there, small and S4
    on the CPU unless given. All but the first two need gigabytes and minutes."""
    camera: Annotated[Path | None, optional("FILE.json")] = None
    """With --ladder or --ablate, look from here; a splat file is framed unless this is given."""
    size: Annotated[str | None, optional("WxH")] = None
    """With --ladder or --ablate, draw at this size, for example 1920x1080."""
    repeat: int = 20
    """Timed runs of each kind."""
    threads: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """Thread counts to compare; one and all unless given."""
    compile: Annotated[bool, arg(help_behavior_hint="")] = True
    """Leave out how long the CPU's kernels take to compile, and to load once compiled."""
    train: Annotated[Path | None, optional("CAPTURE")] = None
    """The path of a capture whose training steps are timed: on a GPU where there is one, without growth and in five
    blocks; with --cpu, or where there is none, beside the scenes."""
    recipe: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME")] = ()
    """With --train, whole runs by these recipes, for example inria mcmc fast, scored on views held out; gsplat and
    gsplat-mcmc are another trainer's, left out where it cannot run; a run's settings.json is a recipe, too."""
    iterations: Annotated[int | None, optional("INT")] = None
    """With --recipe, how long the runs are, as for `splatscope train`."""
    seeds: Annotated[tuple[int, ...], UseAppendAction, repeated(int, "INT")] = ()
    """With --recipe, a run for each of these; 0 unless given."""
    set: Annotated[tuple[str, ...], UseAppendAction, repeated(str, "NAME=VALUE")] = ()
    """With --recipe, change single settings, as for `splatscope train`; not those that an option here gives."""
    resume: Annotated[Path | None, optional("PATH")] = None
    """With --train, begin with these splats (.ply) or this checkpoint instead of the capture's points."""
    num_downscales: Annotated[int | None, optional("INT")] = None
    """With --train, as for `splatscope train`."""
    sh_degree_interval: Annotated[int | None, optional("INT")] = None
    """With --train, as for `splatscope train`."""
    warmup_length: Annotated[int | None, optional("INT")] = None
    """Accepted with --train for the sake of other trainers' command lines: growth is off anyway."""
    resolution: Annotated[int, arg(aliases=["-r"])] = -1
    """Size at which --train reads its photographs, as for `splatscope train`."""
    train_steps: Annotated[int, arg(aliases=["-n"])] = 100
    """Training steps timed with --train; of a block on a GPU."""
    runs: int = 3
    """With --train and where steps are timed in blocks, do all of it so often from the same start, each time in a new
    process, for the run-to-run spread."""
    out: Annotated[Path | None, optional("PATH")] = None
    """Write everything measured to this JSON file; in a folder it is named for what was measured and the day."""
    from_json: Annotated[tuple[Path, ...], UseAppendAction, repeated(Path, "FILE")] = ()
    """Measure nothing: show the results in these files."""
    readme: Annotated[Path | None, optional("FILE")] = None
    """Rewrite the table between the bench:cpu, bench:cuda, bench:peers, bench:train or bench:schedule marks of
    this text file."""
