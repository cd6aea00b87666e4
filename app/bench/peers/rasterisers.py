"""Draws with other rasterisers, on the same tensors, camera and image gradient as ours.

None of them is a dependency: a person who wants the comparison installs them, and a sentence names each that is
missing. A peer has the methods of `Peer`. Parameters that it takes activated are activated before the timed part.
Turns and timing: `bench/ladder.py`; whole training steps: `app/bench/peers/steps.py`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.kernels.cuda.plan.passes import Scene
    from splatscope.kernels.types import Camera

FAR = 1e10  # world units: none of ours is cut off
PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh")


@dataclass(frozen=True, eq=False)
class PeerInput:
    """Holds raw parameters on one device, and the camera."""

    means: Any  # [N, 3] world units
    log_scales: Any  # [N, 3]
    quats: Any  # [N, 4] (w, x, y, z), any length
    logit_opacities: Any  # [N]
    sh: Any  # [N, K, 3]
    camera: Camera

    @staticmethod
    def of(scene: Scene, camera: Camera, rows: int) -> PeerInput:
        """Returns the tensors of an uploaded scene, with the first `rows` K of its 16 padded harmonics."""
        sh = scene.sh["f32"][:, :rows].contiguous()
        return PeerInput(scene.means, scene.log_scales, scene.quats, scene.logit_opacities, sh, camera)

    @property
    def sh_degree(self) -> int:
        return round(self.sh.shape[1] ** 0.5) - 1

    def tensor(self, values: Any) -> Any:
        """Returns a float32 tensor on the device of the parameters."""
        return self.means.new_tensor(values)


class Peer(Protocol):
    """Draws with one rasteriser in one of its ways."""

    name: str
    version: str

    def prepare(self, given: PeerInput) -> None:
        """Takes the scene in; not timed."""
        ...

    def forward(self) -> Any:
        """Returns the image [H, W, 3] over black, for `backward` unless gradients are off."""
        ...

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        """Returns the gradients of the parameters that the rasteriser takes."""
        ...

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        """Converts these gradients to gradients of our raw parameters, by name; not timed."""
        ...

    def release(self) -> None:
        """Frees the scene."""
        ...


# ---- What they have in common ----------------------------------------------------------------------------------------


class Autograd:
    """Draws with a rasteriser behind torch.autograd."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module, self.name, self.version = module, name, module_version(module)
        self.stored_now: tuple[Any, ...] = ()
        self.leaves: tuple[Any, ...] = ()
        self.view: Any = None

    def prepare(self, given: PeerInput) -> None:
        self.stored_now = self.stored(given)
        self.leaves = tuple(leaf.detach().requires_grad_() for leaf in self.used(self.stored_now))
        self.view = self.view_of(given)

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        import torch

        return torch.autograd.grad(image, self.leaves, image_gradient)

    def release(self) -> None:
        self.stored_now, self.leaves, self.view = (), (), None

    def stored(self, given: PeerInput) -> tuple[Any, ...]:
        """Returns raw parameters as its optimiser holds them."""
        raise NotImplementedError

    def used(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the parameters as the rasteriser takes them, from the stored ones."""
        return stored

    def view_of(self, given: PeerInput) -> Any:
        """Returns the rasteriser's own description of a camera; made once."""
        raise NotImplementedError

    def forward(self) -> Any:
        """Returns the image [H, W, 3] of `leaves` seen from `view`."""
        raise NotImplementedError

    def optimizer(self, stored: tuple[Any, ...]) -> Any:
        """Returns the fastest Adam available for the stored parameters; its rates are zero."""
        import torch

        return torch.optim.Adam([{"params": [leaf]} for leaf in stored], lr=0.0, eps=1e-15, fused=True)

    def keep_statistics(self, given: PeerInput) -> None:
        """Begins to gather statistics for density control, if the rasteriser's kernels do that."""


class _Planes(Autograd):
    """Draws pictures that are three planes [3, H, W].

    The image gradient is laid out in planes once, outside the timed part, because Faster-GS reads memory as it lies,
    whatever the strides.
    """

    _laid_out: tuple[Any, Any] = (None, None)  # a gradient [H, W, 3], and the same numbers as planes

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        """Returns the gradients; takes the same tensor, given again, to hold the same numbers."""
        if self._laid_out[0] is not image_gradient:
            self._laid_out = image_gradient, as_planes(image_gradient)
        return super().backward(image, self._laid_out[1])

    def release(self) -> None:
        super().release()
        self._laid_out = (None, None)


def as_planes(image: Any) -> Any:
    """Returns an image [H, W, 3] whose memory is three planes."""
    return image.permute(2, 0, 1).contiguous().permute(1, 2, 0)


class _Activated(Autograd):
    """Draws with a rasteriser that takes scales, unit quaternions and opacities."""

    wants_unit_quats = True

    def stored(self, given: PeerInput) -> tuple[Any, ...]:
        return given.means, given.log_scales, given.quats, given.logit_opacities, given.sh

    def used(self, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        import torch

        means, log_scales, quats, logits, sh = stored
        if self.wants_unit_quats:
            quats = torch.nn.functional.normalize(quats, dim=-1)
        return means, log_scales.exp(), quats, torch.sigmoid(logits), sh

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        """Applies the chain rule of exp, sigmoid and of the division by a quaternion's length."""
        means, scales, quats, opacities, sh = gradients
        _, scale, unit, opacity, _ = (leaf.detach() for leaf in self.leaves)
        if self.wants_unit_quats:
            across = quats - unit * (quats * unit).sum(-1, keepdim=True)
            quats = across / self.stored_now[2].norm(dim=-1, keepdim=True)
        return {
            "means": means,
            "log_scales": scales * scale,
            "quats": quats,
            "logit_opacities": opacities.reshape(opacity.shape) * opacity * (1 - opacity),
            "sh": sh,
        }


# ---- Adapters --------------------------------------------------------------------------------------------------------


class Gsplat(_Activated):
    """Calls gsplat's `rasterization`, with rows of all splats or packed to the visible ones."""

    wants_unit_quats = False  # its kernels divide by the length

    def __init__(self, module: ModuleType, packed: bool) -> None:
        super().__init__(module, "gsplat, packed" if packed else "gsplat, unpacked")
        self._packed = packed

    def view_of(self, given: PeerInput) -> Any:
        c = given.camera
        intrinsics = given.tensor([[[c.fx, 0, c.cx], [0, c.fy, c.cy], [0, 0, 1]]])
        return given.tensor(c.matrix)[None], intrinsics, c, given.sh_degree

    def forward(self) -> Any:
        means, scales, quats, opacities, sh = self.leaves
        matrix, intrinsics, camera, sh_degree = self.view
        colors, _, _ = self.module.rasterization(
            means,
            quats,
            scales,
            opacities,
            sh,
            matrix,
            intrinsics,
            camera.width,
            camera.height,
            near_plane=camera.near,
            far_plane=FAR,
            sh_degree=sh_degree,
            packed=self._packed,
        )
        return colors[0]


class Inria(_Planes, _Activated):
    """Calls the rasteriser of the 2023 paper. Its near plane is 0.2 whatever the camera's."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module, "inria")

    def view_of(self, given: PeerInput) -> Any:
        camera = given.camera
        width, height = camera.width, camera.height
        clip_from_view = given.tensor(
            [
                [2 * camera.fx / width, 0, 2 * camera.cx / width - 1, 0],
                [0, 2 * camera.fy / height, 2 * camera.cy / height - 1, 0],
                [0, 0, 1, -camera.near],
                [0, 0, 1, 0],
            ]
        )
        view = given.tensor(camera.matrix)
        wanted = {
            "image_height": height,
            "image_width": width,
            "tanfovx": width / (2 * camera.fx),
            "tanfovy": height / (2 * camera.fy),
            "bg": given.tensor([0.0, 0.0, 0.0]),
            "scale_modifier": 1.0,
            "viewmatrix": view.T.contiguous(),
            "projmatrix": (clip_from_view @ view).T.contiguous(),
            "sh_degree": given.sh_degree,
            "campos": given.tensor(camera.position),
            "prefiltered": False,
            "debug": False,
            "antialiasing": False,
        }
        settings = self.module.GaussianRasterizationSettings
        rasterizer = self.module.GaussianRasterizer(settings(**{name: wanted[name] for name in settings._fields}))
        return rasterizer, given.means.new_zeros((len(given.means), 3))

    def forward(self) -> Any:
        means, scales, quats, opacities, sh = self.leaves
        rasterizer, means2d = self.view
        image = rasterizer(
            means3D=means,
            means2D=means2d,
            opacities=opacities[:, None],
            shs=sh,
            scales=scales,
            rotations=quats,
        )[0]
        return image.permute(1, 2, 0)


class FasterGs(_Planes):
    """Calls Faster-GS, which takes raw parameters as we do, the constant harmonic apart from the others."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module, "faster_gs")
        self._statistics: Any = None

    def stored(self, given: PeerInput) -> tuple[Any, ...]:
        return faster_gs_parameters(given)

    def view_of(self, given: PeerInput) -> Any:
        if self._statistics is None:
            self._statistics = given.tensor([])  # none are gathered
        return faster_gs_settings(self.module, given, proper_antialiasing=False)

    def forward(self) -> Any:
        """Returns the image; without gradients by the kernels for viewing, which write rows."""
        import torch

        if not torch.is_grad_enabled():
            known = inspect.signature(self.module.rasterize).parameters
            wanted = {name: False for name in ("to_chw", "clamp_output") if name in known}
            return self.module.rasterize(*self.leaves, self.view, **wanted)
        return self.module.diff_rasterize(*self.leaves, self._statistics, self.view).permute(1, 2, 0)

    def optimizer(self, stored: tuple[Any, ...]) -> Any:
        """Returns Faster-GS's own Adam, which makes one launch for each parameter."""
        return self.module.FusedAdam([{"params": [leaf]} for leaf in stored], lr=0.0, eps=1e-15)

    def keep_statistics(self, given: PeerInput) -> None:
        self._statistics = given.means.new_zeros((2, len(given.means)))

    def release(self) -> None:
        super().release()
        self._statistics = None

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        import torch

        means, log_scales, quats, logits, first, rest = gradients
        return {
            "means": means,
            "log_scales": log_scales,
            "quats": quats,
            "logit_opacities": logits[:, 0],
            "sh": torch.cat([first, rest], 1),
        }


def faster_gs_parameters(given: PeerInput) -> tuple[Any, ...]:
    """Returns raw parameters as Faster-GS keeps them: contiguous, because it reads memory as it lies."""
    sh = given.sh
    found = given.means, given.log_scales, given.quats, given.logit_opacities[:, None], sh[:, :1], sh[:, 1:]
    return tuple(parameter.contiguous() for parameter in found)


def faster_gs_settings(module: ModuleType, given: PeerInput, **others: Any) -> Any:
    """Returns Faster-GS's RasterizerSettings; `others` are settings that only some of its variants have."""
    camera = given.camera
    wanted = {
        "w2c": given.tensor(camera.matrix),
        "cam_position": given.tensor(camera.position),
        "bg_color": given.tensor([0.0, 0.0, 0.0]),
        "active_sh_bases": given.sh.shape[1],
        "width": camera.width,
        "height": camera.height,
        "focal_x": camera.fx,
        "focal_y": camera.fy,
        "center_x": camera.cx,
        "center_y": camera.cy,
        "near_plane": camera.near,
        "far_plane": FAR,
        **others,
    }
    settings = module.RasterizerSettings
    return settings(**{name: wanted[name] for name in settings._fields})


@dataclass(frozen=True)
class PeerKind:
    """Names the modules of a rasteriser, the adapters made of them, and its home page."""

    modules: tuple[str, ...]  # the first that is installed
    make: Callable[[ModuleType], list[Any]]
    home: str


PEERS = {
    "gsplat": PeerKind(
        ("gsplat",), lambda module: [Gsplat(module, False), Gsplat(module, True)], "https://docs.gsplat.studio"
    ),
    "inria": PeerKind(
        ("diff_gaussian_rasterization", "gaussian_splatting.diff_gaussian_rasterization"),
        lambda module: [Inria(module)],
        "https://github.com/graphdeco-inria/diff-gaussian-rasterization",
    ),
    "faster_gs": PeerKind(
        ("FasterGSCudaBackend",),
        lambda module: [FasterGs(module)],
        "https://github.com/nerficg-project/faster-gaussian-splatting",
    ),
}


# ---- Finding and comparing -------------------------------------------------------------------------------------------


def find_peers(
    names: tuple[str, ...], kinds: dict[str, PeerKind] = PEERS, option: str = "--vs"
) -> tuple[list[Any], list[str]]:
    """Returns (the peers of the named kinds that are installed, a sentence for each that is not); `all` names all.

    Raises InputError for an unknown name, and where peers are asked for by name and none is installed.
    """
    wanted = tuple(kinds) if "all" in names else names
    if unknown := [name for name in wanted if name not in kinds]:
        raise InputError(f"{option} must be of all, {', '.join(kinds)}; got {unknown[0]!r}.")
    peers, absent = [], []
    for name in wanted:
        module, reason = _import_first(kinds[name].modules)
        if module is None:
            absent.append(f"{name} {reason}, so it is not in the table; it comes from {kinds[name].home}.")
        else:
            peers += kinds[name].make(module)
    if names and "all" not in names and not peers:
        raise InputError(" ".join(absent))
    return peers, absent


def _import_first(names: tuple[str, ...]) -> tuple[ModuleType | None, str]:
    """Returns the first module that is installed, or None and the reason."""
    for name in names:
        try:
            return importlib.import_module(name), ""
        except ModuleNotFoundError as error:
            if error.name is not None and name != error.name and not name.startswith(f"{error.name}."):
                return None, f"is installed but needs {error.name}, which is not"
        except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
            return None, f"is installed but does not load ({str(error).splitlines()[0]})"
    return None, "is not installed"


def module_version(module: ModuleType) -> str:
    """Returns the version that the module or its distribution states."""
    if version := getattr(module, "__version__", None):
        return str(version)
    top = module.__name__.partition(".")[0]
    for distribution in importlib.metadata.packages_distributions().get(top, []):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return "of unknown version"


def compare(peer: Peer, image_gradient: Any, image: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """Compares the peer's picture and gradients with ours.

    Returns the mean and the largest |difference| of the image [H, W, 3], and the length of each gradient's difference
    over the length of our gradient.
    """
    theirs = peer.forward()
    difference = (theirs.detach() - image).abs()
    raw = peer.raw_gradients(peer.backward(theirs, image_gradient))
    relative = {}
    for name in PARAMETERS:
        ours = gradients[name].reshape(len(gradients[name]), -1)
        rows = raw[name].reshape(len(raw[name]), -1)  # our harmonics may have more columns, all zero
        ours = ours[:, : rows.shape[1]].double()
        relative[name] = float((rows.double() - ours).norm() / ours.norm())
    return {
        "image_mean_difference": float(difference.mean()),
        "image_largest_difference": float(difference.max()),
        "gradient_differences": relative,
    }
