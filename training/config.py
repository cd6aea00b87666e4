"""Every training setting, one frozen dataclass a group; the defaults are those of the 2023 recipe.

Source: Kerbl, Kopanas et al. 2023 and the authors' later change of the opacity rate; other groups name theirs.
Command line, window and settings file all read these fields; nothing here touches data. The named sets of values
are in `recipes.py`; read `trainer.py` next.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from splatscope.assets.capture import AxesChoice
from splatscope.assets.photographs.view_pixels import AlphaUse, MaskUse
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter, Policy

StrategyName = Literal["adaptive", "mcmc", "budget"]
DIVISORS = range(1, 9)  # that -r may divide the size of photographs by; larger numbers are widths


@dataclass(frozen=True)
class DataConfig:
    """Which photographs are trained on, at which size, and over what."""

    images: str = "images"  # folder of the photographs inside the capture (COLMAP)
    resolution: int = -1  # 1 to 8 divide the size, more is the width in pixels, -1 limits the width to 1600
    white_background: bool = False  # trains over white; photographs with transparency always are
    eval: bool = False  # holds out every 8th view by name for scoring; a test split of the capture is always held out
    holdout_interval: int = 8  # with eval, views whose index by name is a multiple of this are held out
    training_views_tested: int = 10  # number of training views to score if no views are held out
    background: tuple[float, ...] = ()  # RGB from 0 to 1 to train over; empty takes black, or white if that is set
    random_background: bool = False  # draws a new background colour each step; scores and pictures keep the fixed one
    alpha: AlphaUse = "background"  # transparency of photographs shows the background, weighs the loss, or is ignored
    axes: AxesChoice = "auto"  # axes of the cameras; auto: those of the format, unless the points rule them out
    masks: MaskUse = "use"  # use: masked pixels count in no loss or score; invert: the others; ignore: none


@dataclass(frozen=True)
class InitialConfig:
    """The first splats."""

    source: Literal["points", "random"] = "points"  # places splats on the points or at random
    random_count: int | None = None  # splats to begin with if there are no points; none: 100,000, on the CPU 20,000
    cube_half_width: float = 1.3  # half width in world units of the cube that random splats of a Blender set lie in
    carve: bool = False  # leaves out random splats that cut-out photographs show as transparent, colours the others
    opacity: float = 0.1  # opacity of the first splats
    scale_factor: float = 1.0  # size of the first splats, times the mean distance to the nearest points
    smallest_square: float = 1e-7  # least mean squared distance to 3 neighbours that sizes are set from


@dataclass(frozen=True)
class RateConfig:
    """Learning rates and Adam's constants."""

    means_start: float = 1.6e-4  # rate of positions at first, times the scene extent
    means_end: float = 1.6e-6  # rate of positions after the decay, times the scene extent; log-linear in between
    means_hold: int = 0  # iterations at the first rate of positions before it decays
    means_steps: int = 30_000  # iteration at which that decay ends, whatever the length of the run
    late_after: int = 0  # iteration from which all rates also fall log-linearly until means_steps; 0 never
    late_share: float = 0.1  # share of the rates that is left at the end of that fall
    sh_constant: float = 2.5e-3  # rate of the base colour
    sh_rest_share: float = 0.05  # rate of all higher spherical harmonics, times that of the base colour
    opacity: float = 0.025  # rate of logit opacities; the 2023 release had 0.05
    log_scales: float = 5e-3  # rate of the logarithms of sizes
    quats: float = 1e-3  # rate of rotations
    beta1: float = 0.9  # Adam's decay of the mean gradient per step
    beta2: float = 0.999  # Adam's decay of the mean squared gradient per step
    epsilon: float = 1e-15  # Adam's addition to the denominator, against division by zero


@dataclass(frozen=True)
class DensifyConfig:
    """Strategy `adaptive`: where splats are added and removed (Kerbl, Kopanas et al. 2023, section 5.2)."""

    enabled: bool = True  # adds and removes splats while training; off keeps their number, whatever the strategy
    start: int = 500  # refines come after this iteration
    stop: int = 15_000  # refines come before this iteration; statistics are gathered from the first step
    interval: int = 100  # iterations between refines
    gradient_threshold: float = 2e-4  # mean gradient of projected positions, in NDC, that clones or splits a splat
    absgrad: bool = False  # sums absolute gradients of pixels; these need a threshold of about 8e-4
    dense_share: float = 0.01  # share of the extent: smaller splats are cloned, larger ones are split
    split_count: int = 2  # number of children that replace a split splat
    split_shrink: float = 1.6  # number that the sizes of children are divided by
    smallest_opacity: float = 0.005  # opacity below which a splat is pruned
    large_share: float = 0.1  # share of the extent above which splats are pruned, after the first opacity reset
    reset_interval: int = 3_000  # iterations between opacity resets; over white there is also one at `start`
    reset_opacity: float = 0.01  # opacity that resets lower all splats to
    max_splats: int | None = None  # splats at which growth ends, strongest gradients first; none: no limit


@dataclass(frozen=True)
class McmcConfig:
    """Strategy `mcmc`: a fixed budget that moves (Kheradmand et al. 2024, 3D Gaussian splatting as MCMC)."""

    start: int = 500  # relocates and grows after this iteration
    stop: int = 25_000  # relocates and grows before this iteration
    interval: int = 100  # iterations between refines
    max_splats: int | None = 1_000_000  # splats to grow to; none: from splats_per_pixel, at most a million
    splats_per_pixel: float = 1.5  # without max_splats, splats for each pixel that is not background
    growth: float = 0.05  # share of the splats that is added at each refine until max_splats
    dead_opacity: float = 0.005  # opacity at or below which splats are moved onto others
    noise: float = 5e5  # noise added to positions after every step, times their rate
    noise_steepness: float = 100.0  # steepness of the sigmoid that spares opaque splats from noise
    most_copies: int = 51  # most splats that may share one place in the opacity formula
    keeps_momentum: bool = True  # keeps Adam's moments of splats that others move onto; the authors' code does not


@dataclass(frozen=True)
class BudgetConfig:
    """Strategy `budget`: a count that rises linearly to a budget, drawn by pull (after Taming 3DGS and LiteGS).

    Opacities can be halved now and then instead of being reset.
    """

    start: int = 500  # refines come after this iteration
    stop: int = 15_000  # refines come before this iteration; the budget is reached at the last one
    interval: int = 200  # iterations between refines
    max_splats: int | None = None  # splats to grow to; none: from splats_per_pixel, at most a million
    splats_per_pixel: float = 1.5  # without max_splats, splats for each pixel that is not background
    dense_share: float = 0.01  # share of the extent: smaller splats are copied, larger ones get children
    split: bool = False  # replaces a large splat by two children; off adds one child next to it
    child_shrink: float = 1.6  # number that the sizes of children are divided by
    smallest_opacity: float = 0.005  # opacity below which a splat is pruned at a refine
    halving_interval: int = 1_000  # iterations between halvings of all opacities; 0 never
    halvings: int = 8  # most halvings in a run
    halving_floor: float = 1 / 128  # opacity below which none is halved


@dataclass(frozen=True)
class ResolutionConfig:
    """Training on smaller pictures first. Halving is that of the gradient-free schedules in use since 2024;
    `frequency` is DashGaussian's (Chen et al. 2025), which reads the schedule off the photographs' spectra."""

    schedule: Literal["halving", "frequency"] = "halving"  # fixed times, or times from the spectra of photographs
    num_downscales: int = 0  # with halving, how often sizes are halved at first; 0: full size from the start
    interval: int = 3_000  # with halving, iterations until the size doubles
    until: int = 0  # with frequency, iteration from which pictures have their full size; 0 from the start
    most: int = 4  # with frequency, the most that sizes are divided by


@dataclass(frozen=True)
class ExposureConfig:
    """An affine colour transform for each training photograph, as in the 2023 authors' code since 2024.

    The rates are those of their published evaluation. The defaults of their code are ten times as high and cost
    held-out quality: colours then drift along the camera path, and the splats follow.
    """

    enabled: bool = False  # fits an affine colour transform to each training photograph
    rate_start: float = 0.001  # rate at the first iteration, before the delay lowers it
    rate_end: float = 0.0001  # rate at the last iteration; log-linear in between
    delay_steps: int = 5_000  # iterations over which the rate rises to its full value; 0: full from the start
    delay_share: float = 0.001  # share of the rate that the delay begins with


@dataclass(frozen=True)
class PlateauConfig:
    """Stops early when the scores no longer rise."""

    patience: int = 0  # scorings without a gain after which the run ends; 0 never ends it early
    gain: float = 0.02  # rise in dB over the best score so far that counts as a gain
    after: int = 15_000  # scorings up to this iteration are not judged, because growth and resets make them jump


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run so that it can go on after a crash. Written in the background, one after the other."""

    enabled: bool = True  # writes checkpoints in the background, so that the run can be resumed
    # seconds between checkpoints; fewer while the run is young, more where writing takes longer or would hold up steps
    # for more than a fiftieth of the time; every saved PLY also has one; 0 uses the interval alone
    seconds: float = 10.0
    interval: int = 0  # iterations between checkpoints, in addition to the clock; 0 uses the clock alone
    keep: int = 2  # checkpoints kept on disk next to the one being written; older ones are removed


@dataclass(frozen=True)
class TrainConfig:
    """A whole run.

    `antialiasing` is the filter (project.filter of kernels/policy.py) that steps and scores are drawn with and that
    saved splats name as theirs. plain is that of 2023; compensated also lowers opacities by as much as splats grew,
    which gsplat calls antialiased; mip is the 2D filter of Mip-Splatting (Yu et al. 2024). Mip-Splatting's 3D smoothing
    filter, which bounds splats by the sampling rate of the training views, is not part of any.
    """

    iterations: int = 30_000  # length of the run in training steps
    sh_degree: int = 3  # highest degree of spherical harmonics, 0 to 3
    sh_interval: int = 1_000  # iterations after which the trained degree rises by one
    dssim_weight: float = 0.2  # weight w of the loss (1 - w) L1 + w (1 - SSIM)
    opacity_penalty: float = 0.0  # weight of the mean opacity in the loss (MCMC: 0.01)
    scale_penalty: float = 0.0  # weight of the mean half axis, in world units, in the loss (MCMC: 0.01)
    antialiasing: Filter = "plain"  # filter of training; compensated: gsplat's antialiased; mip: Mip-Splatting's in 2D
    seed: int = 0  # seed of all random numbers; runs with one seed and settings take the same course
    strategy: StrategyName = "adaptive"  # how splats are added and removed; its constants are in the group of its name
    # sorts splats along a Morton curve after a refine that leaves more than this share out of order: neighbours in
    # space are then neighbours in memory, which is faster; 1 never sorts
    reorder_share: float = 0.1
    save_iterations: tuple[int, ...] = (7_000, 30_000)  # iterations to save splats at; the last one always is
    test_iterations: tuple[int, ...] = ()  # iterations that are scored, besides every test_interval and the end
    test_interval: int = 1_000  # iterations between scores; 0 scores only at test_iterations and at the end
    data: DataConfig = DataConfig()
    initial: InitialConfig = InitialConfig()
    rates: RateConfig = RateConfig()
    densify: DensifyConfig = DensifyConfig()
    mcmc: McmcConfig = McmcConfig()
    budget: BudgetConfig = BudgetConfig()
    resolution: ResolutionConfig = ResolutionConfig()
    exposure: ExposureConfig = ExposureConfig()
    plateau: PlateauConfig = PlateauConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def policy(self) -> Policy:
        """What splats of this run are drawn with, in steps and for scores."""
        return Policy().with_value("project", "filter", self.antialiasing)

    def other_filter(self, before: Filter) -> str:
        """A sentence about splats that were trained with a filter before, empty if it is the same."""
        now = self.antialiasing
        return "" if before == now else f"Its splats were trained with antialiasing = {before} and go on with {now}."

    def check(self) -> None:
        """Raises InputError for a value no run can use."""
        for name, low, high in _LIMITS:
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            most = _MOST if high is None else high
            if value is not None and not low <= value <= most:  # NaN is not
                allowed = f"at least {low}" if high is None and value < low else f"from {low} to {most}"
                raise InputError(f"{name} must be {allowed}, got {shown(value)}.")
        for name in ("save_iterations", "test_iterations"):
            wrong = [number for number in getattr(self, name) if not 1 <= number <= _MOST]
            if wrong:
                raise InputError(f"{name} must be numbers from 1 to {_MOST}, got {shown(wrong[0])}.")
        resolution = self.data.resolution
        if resolution < _LEAST_WIDTH and resolution not in (-1, *DIVISORS):
            raise InputError(
                f"resolution (-r) must be a whole number from 1 to {DIVISORS[-1]} to divide the size, a width of "
                f"{_LEAST_WIDTH} pixels or more, or -1 (at most 1600 wide), got {shown(resolution)}."
            )
        background = self.data.background
        if background and (len(background) != 3 or not all(0 <= channel <= 1 for channel in background)):
            raise InputError(f"data.background must be {_LISTS['data.background']}, got {shown(list(background))}.")
        if self.data.alpha != "background" and self.data.random_background:
            raise InputError("data.random_background needs data.alpha=background: nothing else shows the background.")


_LEAST_WIDTH = 16  # px that a photograph may be asked to have: below, a divisor was meant that there is not
_MOST = 10**9  # of whatever has no bound of its own: beyond it numbers are mistakes and overflow somewhere
# Every setting that is a number, by name: lowest and highest.
_LIMITS: tuple[tuple[str, float, float | None], ...] = (
    ("iterations", 1, None),
    ("sh_degree", 0, 3),
    ("sh_interval", 1, None),
    ("dssim_weight", 0, 1),
    ("opacity_penalty", 0, 1000),
    ("scale_penalty", 0, 1000),
    ("seed", 0, 2**63 - 1),
    ("test_interval", 0, None),
    ("reorder_share", 0, 1),
    ("data.holdout_interval", 2, None),
    ("data.training_views_tested", 1, None),
    ("initial.random_count", 1, 10**7),
    ("initial.cube_half_width", 1e-6, 1e6),
    ("initial.opacity", 1e-4, 0.99),
    ("initial.scale_factor", 1e-4, 100),
    ("initial.smallest_square", 1e-30, 1e6),
    ("rates.means_start", 1e-30, 10),
    ("rates.means_end", 1e-30, 10),
    ("rates.means_hold", 0, None),
    ("rates.means_steps", 0, None),
    ("rates.late_after", 0, None),
    ("rates.late_share", 1e-6, 1),
    ("rates.sh_constant", 0, 10),
    ("rates.sh_rest_share", 0, 100),
    ("rates.opacity", 0, 10),
    ("rates.log_scales", 0, 10),
    ("rates.quats", 0, 10),
    ("rates.beta1", 0, 0.99999),
    ("rates.beta2", 0, 0.99999),
    ("rates.epsilon", 1e-30, 1),
    ("densify.start", 0, None),
    ("densify.stop", 0, None),
    ("densify.interval", 1, None),
    ("densify.gradient_threshold", 0, None),
    ("densify.dense_share", 0, None),
    ("densify.split_count", 1, 16),
    ("densify.split_shrink", 0.01, 100),
    ("densify.smallest_opacity", 0, 1),
    ("densify.large_share", 0, None),
    ("densify.reset_interval", 1, None),
    ("densify.reset_opacity", 1e-4, 0.99),
    ("densify.max_splats", 1, None),
    ("mcmc.start", 0, None),
    ("mcmc.stop", 0, None),
    ("mcmc.interval", 1, None),
    ("mcmc.max_splats", 1, None),
    ("mcmc.splats_per_pixel", 0.001, 1000),
    ("mcmc.growth", 0, 10),
    ("mcmc.dead_opacity", 1e-6, 0.5),
    ("mcmc.noise", 0, 1e12),
    ("mcmc.noise_steepness", 0, 1e6),
    ("mcmc.most_copies", 2, 51),
    ("budget.start", 0, None),
    ("budget.stop", 0, None),
    ("budget.interval", 1, None),
    ("budget.max_splats", 1, None),
    ("budget.splats_per_pixel", 0.001, 1000),
    ("budget.dense_share", 0, None),
    ("budget.child_shrink", 0.01, 100),
    ("budget.smallest_opacity", 0, 1),
    ("budget.halving_interval", 0, None),
    ("budget.halvings", 0, None),
    ("budget.halving_floor", 1e-4, 0.5),
    ("resolution.num_downscales", 0, 6),
    ("resolution.interval", 1, None),
    ("resolution.until", 0, 10**7),
    ("resolution.most", 1, 8),
    ("exposure.rate_start", 1e-9, 1),
    ("exposure.rate_end", 1e-9, 1),
    ("exposure.delay_steps", 0, None),
    ("exposure.delay_share", 0, 1),
    ("plateau.patience", 0, None),
    ("plateau.gain", 0, None),
    ("plateau.after", 0, None),
    ("checkpoint.seconds", 0, None),
    ("checkpoint.interval", 0, None),
    ("checkpoint.keep", 1, None),
)


# What a list is of, and an example.
_LISTS = {
    "data.background": "three numbers from 0 to 1, for example [1, 0, 0], or [] for the usual one",
    "save_iterations": "a list of iterations, for example [7000, 30000]",
    "test_iterations": "a list of iterations, for example [7000, 30000]",
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_SHOWN = 60  # characters of what was given; numbers may have hundreds of digits


def shown(value: Any) -> str:
    """A value as an error says it, shortened."""
    if isinstance(value, int) and abs(value) >= 10**_SHOWN:  # Python writes none of more than 4,300 digits
        return f"a number of more than {_SHOWN} digits"
    try:
        text = repr(value)
    except RecursionError:
        return "brackets within brackets"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values, ready for JSON."""
    return asdict(config)


def config_from_dict(values: Mapping[str, Any], base: Any = TrainConfig(), where: str = "") -> Any:
    """`base` with the given fields replaced, at any depth; an unknown name or a wrong type raises InputError."""
    hints = get_type_hints(type(base))
    names = {f.name for f in fields(base)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{where}{name}"
        if name not in names:
            raise InputError(f"There is no training setting {shown(path)}; known here: {', '.join(sorted(names))}.")
        current = getattr(base, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"Training setting {path} must be a group of settings, got {shown(value)}.")
            changes[name] = config_from_dict(value, current, f"{path}.")
        else:
            changes[name] = _checked(path, value, hints[name])
    return replace(base, **changes)


def _checked(path: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type; JSON's lists become tuples and whole numbers may stand for floats."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    origin, choices = get_origin(hint), get_args(hint)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and whole:
        return value
    if hint is float and (isinstance(value, float) or (whole and abs(value) <= sys.float_info.max)):
        return float(value)
    if hint is str and isinstance(value, str) and "\0" not in value:
        return value
    if origin is Literal and value in choices:
        return value
    if origin in (Union, types.UnionType) and value is None and types.NoneType in choices:
        return None
    if origin in (Union, types.UnionType):
        return _checked(path, value, choices[0])
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_checked(path, item, choices[0]) for item in value)
    allowed = f"one of {', '.join(choices)}" if origin is Literal else _LISTS.get(path) or _KINDS[hint]
    raise InputError(f"Training setting {path} must be {allowed}, got {shown(value)}.")
