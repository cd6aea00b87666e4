"""Declares every training setting, one frozen dataclass a group; the defaults are those of the 2023 recipe.

Source: Kerbl, Kopanas et al. 2023 and the authors' later change of the opacity rate; other groups name theirs.
One declaration drives checks, settings files, the window's form, the command line and docs/settings.md (`setting.py`).
The groups of the strategies are in `strategy_config.py`, the named sets of values in `recipes.py`. Nothing here touches
data, and nothing here loads NumPy or torch. Read `trainer.py` next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from splatscope.assets.choices import AlphaUse, AxesChoice, MaskUse
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Filter, Policy
from splatscope.kernels.primitive import Primitive
from splatscope.training.setting import Option, group, setting, setting_table, shown, strategy_groups
from splatscope.training.strategy_config import BudgetConfig, DensifyConfig, McmcConfig, StrategySettings

StrategyName = Literal["adaptive", "mcmc", "budget"]
DIVISORS = range(1, 9)  # values of -r that divide the size of photographs; larger ones are widths
_LEAST_WIDTH = 16  # px; below it a value of -r was meant as a divisor, of which there is none so large
_ITERATIONS = "a list of iterations, for example [7000, 30000]"


@dataclass(frozen=True)
class DataConfig:
    """Chooses the photographs, their size and what lies behind them."""

    images: str = setting(
        "images",
        "Folder of the photographs inside a COLMAP capture.",
        in_form=False,
        option=Option("images", "NAME", ("-i",), "Unless given: images."),
    )
    resolution: int = setting(
        -1,
        "Size of the photographs: 1 to 8 divide the size, 16 or more is the width in pixels, -1 caps the width at "
        "1600.",
        main=2,
        empty="-1",
        hint="full, at most 1600 wide",
        option=Option("resolution", "INT", ("-r",), "Unless given: -1."),
    )
    white_background: bool = setting(
        False,
        "Trains over white; photographs with transparency are trained over white anyway.",
        often=4,
        option=Option("white_background", "", ("-w",)),
    )
    eval: bool = setting(
        False,
        "Holds out every 8th view by name for scoring; a test split of the capture is always held out instead.",
        label="Hold out views",
        main=3,
        hint="for scoring",
        option=Option(
            "eval",
            "",
            more="Every Nth by --set data.holdout_interval=N. Test splits are transforms_test.json and nerfstudio's "
            "test_filenames.",
        ),
    )
    holdout_interval: int = setting(
        8, "With eval, views whose index by name is a multiple of this number are held out.", 2
    )
    training_views_tested: int = setting(10, "Number of training views to score if no views are held out.", 1)
    background: tuple[float, ...] = setting(
        (),
        "RGB from 0 to 1 to train over; empty takes black, or white if that is set.",
        listed="three numbers from 0 to 1, for example [1, 0, 0], or [] for the usual one",
    )
    random_background: bool = setting(
        False,
        "Draws a new background colour each step, seen where photographs are transparent; scores and pictures keep "
        "the fixed one.",
        option=Option("random_background", ""),
    )
    alpha: AlphaUse = setting(
        "background",
        "Transparency of photographs: background shows the background, mask leaves transparent pixels out of the "
        "loss, ignore does nothing.",
        label="Alpha channel",
        often=3,
        option=Option("alpha", "{background,mask,ignore}", more="Unless given: background."),
    )
    axes: AxesChoice = setting(
        "auto",
        "Axes of the cameras in the files: opencv (y down, z ahead) or opengl (y up, z behind); auto takes the "
        "format's usual axes, unless the points clearly show the other ones.",
        in_form=False,
        option=Option("axes", "{auto,opencv,opengl}", more="Unless given: auto."),
    )
    masks: MaskUse = setting(
        "use",
        "Masks of photographs: use leaves masked pixels out of loss and scores, invert the others, ignore none.",
        often=2,
        option=Option(
            "masks",
            "{use,invert,ignore}",
            more="Unless given: use. masks/NAME.png and mask_path mask black pixels; dynamic_mask_NAME.png masks the "
            "pixels that are not black. A search for cameras looks at the pixels left.",
        ),
    )


@dataclass(frozen=True)
class InitialConfig:
    """Makes the first splats."""

    source: Literal["points", "random"] = setting(
        "points",
        "Places the first splats on the points of the capture or at random.",
        label="Initialise from",
        often=6,
        option=Option("init", "{points,random}", more="Unless given: points."),
    )
    random_count: int | None = setting(
        None,
        "Splats to begin with if there are no points; none: 100,000, on the CPU 20,000.",
        1,
        10**7,
        label="Random splats",
    )
    cube_half_width: float = setting(
        1.3, "Half width in world units of the cube that random splats of a Blender set lie in.", 1e-6, 1e6
    )
    carve: bool = setting(
        False, "Leaves out random splats that cut-out photographs show as transparent, and colours the others."
    )
    opacity: float = setting(0.1, "Opacity of the first splats.", 1e-4, 0.99)
    scale_factor: float = setting(
        1.0, "Size of the first splats, times the mean distance to the nearest points.", 1e-4, 100
    )
    smallest_square: float = setting(
        1e-7, "Lower limit of the mean squared distance to 3 neighbours, which sizes are set from.", 1e-30, 1e6
    )


@dataclass(frozen=True)
class RateConfig:
    """Sets the learning rates and Adam's constants."""

    means_start: float = setting(1.6e-4, "Rate of positions at first, times the scene extent.", 1e-30, 10)
    means_end: float = setting(
        1.6e-6, "Rate of positions after the decay, times the scene extent; log-linear in between.", 1e-30, 10
    )
    means_hold: int = setting(0, "Iterations at the first rate of positions before it decays.", 0)
    means_steps: int = setting(
        30_000, "Iteration at which the decay of the positions' rate ends, whatever the length of the run.", 0
    )
    late_after: int = setting(
        0, "Iteration from which all rates also fall log-linearly until means_steps; 0: never.", 0
    )
    late_share: float = setting(0.1, "Share of the rates that is left at the end of the late fall.", 1e-6, 1)
    sh_constant: float = setting(2.5e-3, "Rate of the base colour.", 0, 10)
    sh_rest_share: float = setting(
        0.05, "Rate of all higher spherical harmonics, times the rate of the base colour.", 0, 100
    )
    opacity: float = setting(0.025, "Rate of logit opacities; the 2023 release had 0.05.", 0, 10)
    log_scales: float = setting(5e-3, "Rate of the logarithms of sizes.", 0, 10)
    quats: float = setting(1e-3, "Rate of rotations.", 0, 10)
    beta1: float = setting(0.9, "Adam's decay of the mean gradient per step.", 0, 0.99999)
    beta2: float = setting(0.999, "Adam's decay of the mean squared gradient per step.", 0, 0.99999)
    epsilon: float = setting(1e-15, "Adam's addition to the denominator, against division by zero.", 1e-30, 1)


@dataclass(frozen=True)
class ResolutionConfig:
    """Trains on smaller pictures first.

    `halving` has fixed times. `frequency` is DashGaussian's (Chen et al. 2025), which reads the times off the
    photographs' spectra.
    """

    schedule: Literal["halving", "frequency"] = setting(
        "halving",
        "When pictures grow: at fixed times (halving), or at times from the spectra of photographs (frequency).",
    )
    num_downscales: int = setting(
        0,
        "With halving, how often sizes are halved at first; 0: full size from the start.",
        0,
        6,
        option=Option(
            "num_downscales",
            "INT",
            more="The size doubles every 3000 iterations.",
            also=(("resolution.schedule", "halving"),),
        ),
    )
    interval: int = setting(3_000, "With halving, iterations until the size doubles.", 1)
    until: int = setting(
        0, "With frequency, iteration from which pictures have their full size; 0: from the start.", 0, 10**7
    )
    most: int = setting(4, "With frequency, the most that sizes are divided by.", 1, 8)


@dataclass(frozen=True)
class ExposureConfig:
    """Fits an affine colour transform to each training photograph, as the 2023 authors' code does since 2024.

    The rates are those of their published evaluation. The defaults of their code are ten times as high and cost
    held-out quality: colours then drift along the camera path, and the splats follow.
    """

    enabled: bool = setting(
        False,
        "Fits an affine colour transform to each training photograph.",
        label="Fit exposures",
        often=5,
        option=Option("exposure", ""),
    )
    rate_start: float = setting(0.001, "Rate at the first iteration, before the delay lowers it.", 1e-9, 1)
    rate_end: float = setting(0.0001, "Rate at the last iteration; log-linear in between.", 1e-9, 1)
    delay_steps: int = setting(
        5_000, "Iterations over which the rate rises to its full value; 0: full from the start.", 0
    )
    delay_share: float = setting(0.001, "Share of the rate that the delay begins with.", 0, 1)


@dataclass(frozen=True)
class PlateauConfig:
    """Stops a run early when the scores no longer rise."""

    patience: int = setting(
        0,
        "Scorings without a gain after which the run ends; 0: never.",
        0,
        label="Stop early after",
        often=9,
        empty="0",
        hint="never",
        option=Option("patience", "INT", more="Unless given: 0."),
    )
    gain: float = setting(0.02, "Rise in dB over the best score so far that counts as a gain.", 0)
    after: int = setting(
        15_000, "Scorings up to this iteration are not judged, because growth and resets make them jump.", 0
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """Keeps what a run needs to continue after a crash. Checkpoints are written in the background, one at a time."""

    enabled: bool = setting(
        True,
        "Writes checkpoints in the background, so that the run can be resumed.",
        label="Write checkpoints",
    )
    seconds: float = setting(
        10.0,
        "Seconds between checkpoints; 0: by checkpoint.interval alone. They are closer while the run is young, and "
        "further apart where writing takes longer or would hold up steps for more than a fiftieth of the time. Every "
        "saved PLY also has one.",
        0,
    )
    interval: int = setting(0, "Iterations between checkpoints, in addition to the clock; 0: by the clock alone.", 0)
    keep: int = setting(2, "Checkpoints kept on disk in addition to the one being written; older ones are removed.", 1)


@dataclass(frozen=True)
class TrainConfig:
    """Holds all settings of a run.

    `antialiasing` is the filter (project.filter of kernels/policy.py) that steps and scores are drawn with and that
    saved splats name as theirs:
    - plain: the filter of 2023.
    - compensated: lowers opacities by as much as splats grew; gsplat calls it antialiased.
    - mip: the 2D filter of Mip-Splatting (Yu et al. 2024).
    Mip-Splatting's 3D smoothing filter, which bounds splats by the sampling rate of the training views, is in none.
    """

    iterations: int = setting(
        30_000,
        "Length of the run in training steps.",
        1,
        main=1,
        option=Option(
            "iterations",
            "INT",
            more="The recipe's own number unless given: 30,000, or 18,000 for fast and fast_mcmc, whose schedules "
            "scale with it. The other recipes keep the published schedules of 30,000, and a shorter run ends before "
            "they do: growth ends at 15,000 (mcmc: 25,000), the decay of the means' rate at 30,000. With --resume or "
            "--settings, schedules stay as they are there.",
        ),
    )
    sh_degree: int = setting(
        3,
        "Highest degree of spherical harmonics, 0 to 3.",
        0,
        3,
        main=8,
        option=Option("sh_degree", "INT", more="Unless given: 3."),
    )
    sh_interval: int = setting(
        1_000,
        "Iterations after which the trained degree rises by one.",
        1,
        option=Option("sh_degree_interval", "INT", more="Unless given: 1000; fast and fast_mcmc: 3% of the run."),
    )
    dssim_weight: float = setting(0.2, "Weight w of the loss (1 - w) L1 + w (1 - SSIM).", 0, 1, label="DSSIM weight")
    opacity_penalty: float = setting(0.0, "Weight of the mean opacity in the loss (MCMC: 0.01).", 0, 1000)
    scale_penalty: float = setting(
        0.0, "Weight of the mean half axis, in world units, in the loss (MCMC: 0.01).", 0, 1000
    )
    primitive: Primitive = setting(
        "3dgs",
        "What a splat is: a Gaussian that is flattened onto the picture (3dgs), a disk in space (2dgs), or a Gaussian "
        "evaluated along each pixel's ray (3dgut).",
        label="Splats are",
        often=10,
        option=Option("primitive", "{3dgs,2dgs,3dgut}", more="Unless given: 3dgs; the recipes 2dgs and 3dgut set it."),
    )
    antialiasing: Filter = setting(
        "plain",
        "Filter that keeps small splats from slipping between pixels, in training and afterwards: plain widens them, "
        "compensated (gsplat's antialiased) also lowers their opacity, mip is Mip-Splatting's 2D filter.",
        often=1,
        option=Option("antialiasing", "{plain,compensated,mip}", more="Unless given: plain."),
    )
    seed: int = setting(
        0,
        "Seed of all random numbers; on the CPU, runs with the same seed and settings are identical.",
        0,
        2**63 - 1,
        option=Option("seed", "INT", more="Unless given: 0."),
    )
    strategy: StrategyName = setting(
        "adaptive", "How splats are added and removed; each strategy has its own group of settings.", main=4
    )
    reorder_share: float = setting(
        0.1,
        "Sorts splats along a Morton curve after a refine that leaves more than this share out of order; 1: never. "
        "Neighbours in space are then neighbours in memory, which is faster.",
        0,
        1,
    )
    save_iterations: tuple[int, ...] = setting(
        (7_000, 30_000),
        "Iterations after which a PLY is written; one is always written after the last iteration.",
        1,
        label="Save at",
        often=8,
        listed=_ITERATIONS,
        option=Option("save_iterations", "INT", more="Unless given: 7000 and 30000; fast and fast_mcmc: none."),
    )
    test_iterations: tuple[int, ...] = setting(
        (),
        "Iterations after which PSNR and SSIM are measured, in addition to every test_interval and the last one.",
        1,
        label="Score at",
        listed=_ITERATIONS,
        option=Option("test_iterations", "INT"),
    )
    test_interval: int = setting(
        1_000,
        "Iterations between measurements of PSNR and SSIM; 0: only at test_iterations and at the end.",
        0,
        label="Score every",
        often=7,
        option=Option("test_interval", "INT", more="Unless given: 1000."),
    )
    data: DataConfig = group(DataConfig(), "Photographs")
    initial: InitialConfig = group(InitialConfig(), "Initial splats")
    rates: RateConfig = group(RateConfig(), "Learning rates")
    densify: DensifyConfig = group(DensifyConfig(), "Densification", strategy="adaptive")
    mcmc: McmcConfig = group(McmcConfig(), "MCMC", strategy="mcmc")
    budget: BudgetConfig = group(BudgetConfig(), "Budget", strategy="budget")
    resolution: ResolutionConfig = group(ResolutionConfig(), "Progressive resolution")
    exposure: ExposureConfig = group(ExposureConfig(), "Exposure")
    plateau: PlateauConfig = group(PlateauConfig(), "Early stop")
    checkpoint: CheckpointConfig = group(CheckpointConfig(), "Checkpoints")

    @property
    def policy(self) -> Policy:
        """Returns the toggles that steps and scores of this run are drawn with."""
        return Policy().with_value("project", "filter", self.antialiasing)

    @property
    def strategy_settings(self) -> StrategySettings:
        """Returns the settings of the run's own strategy."""
        return getattr(self, strategy_groups(TrainConfig)[self.strategy])

    def refines(self) -> range:
        """Returns the iterations after which splats are added, moved and removed, as far as a step follows."""
        due = self.strategy_settings.refines()
        return range(due.start, min(due.stop, self.iterations), due.step) if self.densify.enabled else range(0)

    def _check_primitive(self) -> None:
        """Raises InputError for settings that only flattened Gaussians have."""
        if self.primitive == "3dgs":
            return
        if self.densify.absgrad and self.strategy == "adaptive":
            raise InputError(
                f"densify.absgrad adds up gradients of a splat's place on the picture, which 3dgs has and "
                f"{self.primitive} has not; leave it off."
            )
        if self.antialiasing != "plain":
            raise InputError(
                f"antialiasing = {self.antialiasing} widens flattened Gaussians, and {self.primitive} is not widened; "
                "leave it at plain."
            )

    def other_filter(self, before: Filter) -> str:
        """Returns a sentence if splats were trained with another filter before; empty if it is the same."""
        now = self.antialiasing
        return "" if before == now else f"Its splats were trained with antialiasing = {before} and continue with {now}."

    def check(self) -> None:
        """Raises InputError for a value no run can use."""
        for row in setting_table(TrainConfig):
            row.check(row.value_in(self))
        self._check_primitive()
        resolution = self.data.resolution
        if resolution < _LEAST_WIDTH and resolution not in (-1, *DIVISORS):
            raise InputError(
                f"resolution (-r) must be a whole number from 1 to {DIVISORS[-1]} to divide the size, a width of "
                f"{_LEAST_WIDTH} pixels or more, or -1 (at most 1600 wide), got {shown(resolution)}."
            )
        background = self.data.background
        if background and (len(background) != 3 or not all(0 <= channel <= 1 for channel in background)):
            allowed = next(row.declared.listed for row in setting_table(DataConfig) if row.name == "background")
            raise InputError(f"data.background must be {allowed}, got {shown(list(background))}.")
        if self.data.alpha != "background" and self.data.random_background:
            raise InputError("data.random_background needs data.alpha=background: nothing else shows the background.")


def config_to_dict(config: Any) -> dict[str, Any]:
    """Returns the settings as nested plain values, ready for JSON."""
    return asdict(config)


def config_from_dict(values: Mapping[str, Any], base: TrainConfig = TrainConfig()) -> TrainConfig:
    """Returns `base` with the given fields replaced, at any depth.

    Raises InputError for an unknown name and for a value of a wrong type.
    """
    return _replaced(base, values, "")


def _replaced(base: Any, values: Mapping[str, Any], where: str) -> Any:
    names = {f.name for f in fields(base)}
    rows = {row.name: row for row in setting_table(TrainConfig)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{where}{name}"
        if name not in names:
            raise InputError(f"There is no training setting {shown(path)}; known here: {', '.join(sorted(names))}.")
        current = getattr(base, name)
        if not is_dataclass(current):
            changes[name] = rows[path].read(value)
        elif isinstance(value, Mapping):
            changes[name] = _replaced(current, value, f"{path}.")
        else:
            raise InputError(f"Training setting {path} must be a group of settings, got {shown(value)}.")
    return replace(base, **changes)
