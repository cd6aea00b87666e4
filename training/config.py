"""Every training setting, one frozen dataclass a group, with the values of the 2023 recipe.

Source: Kerbl, Kopanas et al. 2023 and the authors' later change of the opacity rate. Command line, window
and settings file all read these fields; nothing here touches data. Read `trainer.py` next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, get_type_hints

from splatscope.kernels.errors import InputError


@dataclass(frozen=True)
class DataConfig:
    """Which photographs are trained on, and at which size."""

    images: str = "images"  # folder of the photographs below the dataset (COLMAP)
    resolution: int = -1  # 1, 2, 4, 8: divide the size; -1: cap the width at 1600; else the width in pixels
    white_background: bool = False  # train over white; RGBA sets always are
    eval: bool = False  # hold out every 8th view by name (a set's own test split is always held out)
    holdout_interval: int = 8  # with eval, views whose index by name is a multiple of this are held out
    training_views_tested: int = 10  # without held-out views, this many training views are scored


@dataclass(frozen=True)
class InitialConfig:
    """The first splats."""

    random_count: int | None = None  # splats drawn without a point cloud; none: 100,000, on the CPU 20,000
    cube_half_width: float = 1.3  # world units; Blender sets draw from the cube of this half width
    opacity: float = 0.1
    smallest_square: float = 1e-7  # floor of the mean squared distance to the 3 nearest points


@dataclass(frozen=True)
class RateConfig:
    """Learning rates and Adam's constants."""

    means_start: float = 1.6e-4  # times the scene extent
    means_end: float = 1.6e-6  # times the scene extent, reached log-linearly
    means_steps: int = 30_000  # iterations of that decay, whatever the length of the run
    sh_constant: float = 2.5e-3
    sh_rest_share: float = 0.05  # of sh_constant, for all higher rows
    opacity: float = 0.025  # 0.05 in the 2023 release
    log_scales: float = 5e-3
    quats: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-15


@dataclass(frozen=True)
class DensifyConfig:
    """Adaptive density control: where splats are added and removed."""

    enabled: bool = True
    start: int = 500  # refines after this iteration
    stop: int = 15_000  # and before this one; statistics are gathered from the first step
    interval: int = 100  # iterations between refines
    gradient_threshold: float = 2e-4  # mean length of dL/d(projected mean) in NDC, over the steps that saw the splat
    dense_share: float = 0.01  # of the extent: a smaller splat is cloned, a larger one split
    split_count: int = 2  # children of a split; the parent goes
    split_shrink: float = 1.6  # children's scales are divided by this
    smallest_opacity: float = 0.005  # a fainter splat is pruned
    large_share: float = 0.1  # of the extent: larger splats are pruned after the first opacity reset
    reset_interval: int = 3_000  # iterations between opacity resets; over white also one at `start`
    reset_opacity: float = 0.01  # opacities are lowered to this
    max_splats: int | None = None  # growth stops here, strongest gradients first; none: no limit


@dataclass(frozen=True)
class TrainConfig:
    """A whole run."""

    iterations: int = 30_000
    sh_degree: int = 3  # highest degree, 0 to 3
    sh_interval: int = 1_000  # iterations between two degrees
    dssim_weight: float = 0.2  # w of (1 - w) L1 + w (1 - SSIM)
    seed: int = 0
    save_iterations: tuple[int, ...] = (7_000, 30_000)  # the last iteration is always saved
    test_iterations: tuple[int, ...] = ()  # scored at these, and every test_interval, and at the end
    test_interval: int = 1_000  # 0: only at test_iterations and at the end
    data: DataConfig = DataConfig()
    initial: InitialConfig = InitialConfig()
    rates: RateConfig = RateConfig()
    densify: DensifyConfig = DensifyConfig()

    def check(self) -> None:
        """Raises InputError for a value no run can use."""
        limits = (
            ("iterations", self.iterations, 1, None),
            ("sh_degree", self.sh_degree, 0, 3),
            ("sh_interval", self.sh_interval, 1, None),
            ("dssim_weight", self.dssim_weight, 0, 1),
            ("seed", self.seed, 0, None),
            ("test_interval", self.test_interval, 0, None),
            ("data.holdout_interval", self.data.holdout_interval, 2, None),
            ("data.training_views_tested", self.data.training_views_tested, 1, None),
            ("initial.random_count", self.initial.random_count, 1, None),
            ("densify.interval", self.densify.interval, 1, None),
            ("densify.reset_interval", self.densify.reset_interval, 1, None),
            ("densify.split_count", self.densify.split_count, 1, None),
            ("densify.max_splats", self.densify.max_splats, 1, None),
        )
        for name, value, low, high in limits:
            if value is not None and (value < low or (high is not None and value > high)):
                allowed = f"at least {low}" if high is None else f"from {low} to {high}"
                raise InputError(f"{name} must be {allowed}, got {value}.")
        if self.data.resolution < 1 and self.data.resolution != -1:
            raise InputError(
                f"resolution (-r) must be 1, 2, 4, 8, a width in pixels or -1 (at most 1600 wide), "
                f"got {self.data.resolution}."
            )


PRESETS = {
    "inria": TrainConfig(),
    "inria2023": TrainConfig(rates=RateConfig(opacity=0.05)),
}


def preset(name: str) -> TrainConfig:
    """The named recipe; raises InputError listing those there are."""
    if name not in PRESETS:
        raise InputError(f"There is no training preset {name!r}; presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


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
            raise InputError(f"There is no training setting {path!r}; known here: {', '.join(sorted(names))}.")
        current = getattr(base, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise InputError(f"Training setting {path} must be a group of settings, got {value!r}.")
            changes[name] = config_from_dict(value, current, f"{path}.")
        else:
            changes[name] = _checked(path, value, hints[name])
    return replace(base, **changes)


def _checked(path: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type; JSON's lists become tuples and whole numbers may stand for floats."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and whole:
        return value
    if hint is float and (whole or isinstance(value, float)):
        return float(value)
    if hint is str and isinstance(value, str):
        return value
    if hint == int | None and (value is None or whole):
        return value
    if hint == tuple[int, ...] and isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
        return tuple(value)
    raise InputError(f"Training setting {path} must be {getattr(hint, '__name__', hint)}, got {value!r}.")
