"""Other rasterisers beside ours: the same tensors, camera and image gradient, in turns with our steps.

None of them is a dependency: whoever wants the comparison installs them by their own means, and what is not installed
is said. A peer is five names (`Peer`); parameters are activated beforehand where it takes them so, outside what is
timed. Turns and timing: `bench_ladder.py`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from splatscope.kernels.errors import InputError

if TYPE_CHECKING:
    from splatscope.kernels.pipeline import Scene
    from splatscope.kernels.types import Camera

FAR = 1e10  # world units: none of ours is cut off
PARAMETERS = ("means", "log_scales", "quats", "logit_opacities", "sh")


@dataclass(frozen=True, eq=False)
class PeerInput:
    """Raw parameters on one device, and where they are seen from."""

    means: Any  # [N, 3] world units
    log_scales: Any  # [N, 3]
    quats: Any  # [N, 4] (w, x, y, z), any length
    logit_opacities: Any  # [N]
    sh: Any  # [N, K, 3]
    camera: Camera

    @staticmethod
    def of(scene: Scene, camera: Camera, rows: int) -> PeerInput:
        """The tensors of an uploaded scene; `rows` K of the 16 harmonics it is padded to."""
        sh = scene.sh["f32"][:, :rows].contiguous()
        return PeerInput(scene.means, scene.log_scales, scene.quats, scene.logit_opacities, sh, camera)

    @property
    def sh_degree(self) -> int:
        return round(self.sh.shape[1] ** 0.5) - 1

    def tensor(self, values: Any) -> Any:
        """float32 beside the parameters."""
        return self.means.new_tensor(values)


class Peer(Protocol):
    """One way of one rasteriser."""

    name: str
    version: str

    def prepare(self, given: PeerInput) -> None:
        """Takes the scene in; not timed."""
        ...

    def forward(self) -> Any:
        """The image [H, W, 3] over black, for `backward` unless gradients are off."""
        ...

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        """Gradients of whatever parameters the rasteriser takes."""
        ...

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        """Those gradients as of our raw parameters, by name; not timed."""
        ...

    def release(self) -> None:
        """Lets go of the scene."""
        ...


# ---- What they have in common ----------------------------------------------------------------------------------------


class _Autograd:
    """A rasteriser behind torch.autograd."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module, self.name, self.version = module, name, _version(module)
        self.given: PeerInput | None = None
        self.leaves: tuple[Any, ...] = ()

    def prepare(self, given: PeerInput) -> None:
        self.given = given
        self.leaves = tuple(leaf.detach().requires_grad_() for leaf in self.parameters(given))
        self.set_up(given)

    def backward(self, image: Any, image_gradient: Any) -> tuple[Any, ...]:
        import torch

        return torch.autograd.grad(image, self.leaves, image_gradient)

    def release(self) -> None:
        self.given, self.leaves = None, ()

    def parameters(self, given: PeerInput) -> tuple[Any, ...]:
        raise NotImplementedError

    def set_up(self, given: PeerInput) -> None:
        """What else is made once a scene."""


class _Activated(_Autograd):
    """One that takes scales, unit quaternions and opacities."""

    def parameters(self, given: PeerInput) -> tuple[Any, ...]:
        import torch

        quats = torch.nn.functional.normalize(given.quats, dim=-1)
        opacities = torch.sigmoid(given.logit_opacities)
        return given.means, given.log_scales.exp(), quats, opacities, given.sh

    def raw_gradients(self, gradients: tuple[Any, ...]) -> dict[str, Any]:
        """By the chain rule of exp, sigmoid and of the division by a quaternion's length."""
        assert self.given is not None
        means, scales, quats, opacities, sh = gradients
        _, scale, unit, opacity, _ = (leaf.detach() for leaf in self.leaves)
        across = quats - unit * (quats * unit).sum(-1, keepdim=True)
        return {
            "means": means,
            "log_scales": scales * scale,
            "quats": across / self.given.quats.norm(dim=-1, keepdim=True),
            "logit_opacities": opacities.reshape(opacity.shape) * opacity * (1 - opacity),
            "sh": sh,
        }


# ---- Adapters --------------------------------------------------------------------------------------------------------


class Gsplat(_Activated):
    """gsplat's `rasterization`, with its parameters as rows of all splats or packed to the visible ones."""

    def __init__(self, module: ModuleType, packed: bool) -> None:
        super().__init__(module, "gsplat, packed" if packed else "gsplat, unpacked")
        self._packed = packed

    def set_up(self, given: PeerInput) -> None:
        camera = given.camera
        self._view = given.tensor(camera.matrix)[None]
        self._intrinsics = given.tensor([[[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]])

    def forward(self) -> Any:
        given = self.given
        assert given is not None
        means, scales, quats, opacities, sh = self.leaves
        colors, _, _ = self.module.rasterization(
            means,
            quats,
            scales,
            opacities,
            sh,
            self._view,
            self._intrinsics,
            given.camera.width,
            given.camera.height,
            near_plane=given.camera.near,
            far_plane=FAR,
            sh_degree=given.sh_degree,
            packed=self._packed,
        )
        return colors[0]


class Inria(_Activated):
    """The rasteriser of the 2023 paper. Its near plane is 0.2 whatever the camera's."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module, "inria")

    def set_up(self, given: PeerInput) -> None:
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
        self._rasterizer = self.module.GaussianRasterizer(settings(**{name: wanted[name] for name in settings._fields}))
        self._means2d = given.tensor([]).new_zeros((len(given.means), 3))

    def forward(self) -> Any:
        means, scales, quats, opacities, sh = self.leaves
        image = self._rasterizer(
            means3D=means,
            means2D=self._means2d,
            opacities=opacities[:, None],
            shs=sh,
            scales=scales,
            rotations=quats,
        )[0]
        return image.permute(1, 2, 0)


class FasterGs(_Autograd):
    """Faster-GS, which takes raw parameters as we do."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module, "faster_gs")

    def parameters(self, given: PeerInput) -> tuple[Any, ...]:
        first, rest = given.sh[:, :1].contiguous(), given.sh[:, 1:].contiguous()
        return given.means, given.log_scales, given.quats, given.logit_opacities[:, None], first, rest

    def set_up(self, given: PeerInput) -> None:
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
            "proper_antialiasing": False,
        }
        settings = self.module.RasterizerSettings
        self._settings = settings(**{name: wanted[name] for name in settings._fields})
        self._nothing = given.tensor([])

    def forward(self) -> Any:
        return self.module.diff_rasterize(*self.leaves, self._nothing, self._settings).permute(1, 2, 0)

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


@dataclass(frozen=True)
class PeerKind:
    """Where a rasteriser is imported from, what is made of it, and where it comes from."""

    modules: tuple[str, ...]  # the first that is installed
    make: Callable[[ModuleType], list[Peer]]
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


def find_peers(names: tuple[str, ...]) -> tuple[list[Peer], list[str]]:
    """(those of the named rasterisers that are here, a sentence for each that is not); `all` names all.

    Raises InputError for a name that there is not, and where one is asked for by name and none is here.
    """
    wanted = tuple(PEERS) if "all" in names else names
    if unknown := [name for name in wanted if name not in PEERS]:
        raise InputError(f"--vs must be of all, {', '.join(PEERS)}; got {unknown[0]!r}.")
    peers, absent = [], []
    for name in wanted:
        module, reason = _import_first(PEERS[name].modules)
        if module is None:
            absent.append(f"{name} {reason}, so it is not in the table; it comes from {PEERS[name].home}.")
        else:
            peers += PEERS[name].make(module)
    if names and "all" not in names and not peers:
        raise InputError(" ".join(absent))
    return peers, absent


def _import_first(names: tuple[str, ...]) -> tuple[ModuleType | None, str]:
    """(the first module that is installed, or None and why)"""
    for name in names:
        try:
            return importlib.import_module(name), ""
        except ModuleNotFoundError as error:
            if error.name is not None and name != error.name and not name.startswith(f"{error.name}."):
                return None, f"is installed but needs {error.name}, which is not"
        except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
            return None, f"is installed but does not load ({str(error).splitlines()[0]})"
    return None, "is not installed"


def _version(module: ModuleType) -> str:
    if version := getattr(module, "__version__", None):
        return str(version)
    top = module.__name__.partition(".")[0]
    for distribution in importlib.metadata.packages_distributions().get(top, []):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return "of unknown version"


def compare(peer: Peer, image_gradient: Any, image: Any, gradients: dict[str, Any]) -> dict[str, Any]:
    """How far the peer's picture and gradients are from ours: mean and largest |difference| of the image [H, W, 3],
    and the length of each gradient's difference over that of ours.
    """
    theirs = peer.forward()
    difference = (theirs.detach() - image).abs()
    raw = peer.raw_gradients(peer.backward(theirs, image_gradient))
    relative = {}
    for name in PARAMETERS:
        ours = gradients[name].reshape(len(gradients[name]), -1)
        rows = raw[name].reshape(len(raw[name]), -1)  # of harmonics ours may have more, zeros
        ours = ours[:, : rows.shape[1]].double()
        relative[name] = float((rows.double() - ours).norm() / ours.norm())
    return {
        "image_mean_difference": float(difference.mean()),
        "image_largest_difference": float(difference.max()),
        "gradient_differences": relative,
    }
