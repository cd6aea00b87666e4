"""Tests other rasterisers: found or named as missing, given the same scene, their gradients converted to our
parameters."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from splatscope.app.bench.peers import rasterisers
from splatscope.app.bench.peers.rasterisers import PARAMETERS, PEERS, PeerInput, find_peers
from splatscope.kernels.errors import InputError
from tests.support.small_scenes import random_camera, random_scene

CAMERA = random_camera(40, 24)
SCENE = random_scene(CAMERA, 6, seed=2, degree=2)


def given() -> PeerInput:
    arrays = {name: torch.from_numpy(getattr(SCENE, name)).double() for name in PARAMETERS}
    arrays["quats"] = arrays["quats"] * torch.linspace(0.5, 2, 6)[:, None]  # any length
    return PeerInput(**arrays, camera=CAMERA)


def picture(*parameters: Any) -> Any:
    """Returns an image [24, 40, 3] that depends on every number of every parameter."""
    total = sum((p.reshape(-1) * torch.arange(1, p.numel() + 1).double() * 0.01).sin().sum() for p in parameters)
    return total * torch.linspace(0, 1, 24 * 40 * 3).double().reshape(24, 40, 3)


def fake_gsplat() -> ModuleType:
    """Returns a module with gsplat's entry, which notes what it is called with."""
    module: Any = ModuleType("gsplat")
    module.__version__ = "9.9"
    module.calls = []

    def rasterization(
        means: Any, quats: Any, scales: Any, opacities: Any, colors: Any, *rest: Any, **options: Any
    ) -> Any:
        module.calls.append((rest, options))
        unit = torch.nn.functional.normalize(quats, dim=-1)
        return picture(means, unit, scales, opacities, colors)[None], None, {}

    module.rasterization = rasterization
    return module


def fake_inria(fields: str) -> ModuleType:
    """Returns a module with the 2023 rasteriser's entry; newer ones have more settings."""
    module: Any = ModuleType("diff_gaussian_rasterization")
    module.__version__ = "0"
    module.GaussianRasterizationSettings = namedtuple("Settings", fields)

    def make(settings: Any) -> Any:
        module.settings = settings

        def draw(**tensors: Any) -> Any:
            assert tensors["opacities"].shape == (6, 1)
            order = ("means3D", "rotations", "scales", "opacities", "shs")
            return picture(*(tensors[name] for name in order)).permute(2, 0, 1), None

        return draw

    module.GaussianRasterizer = make
    return module


class Planes(torch.autograd.Function):
    """Holds an image [H, W, 3] as planes; its gradient is read in memory order, as by Faster-GS."""

    @staticmethod
    def forward(ctx: Any, image: Any) -> Any:  # pyright: ignore
        return image.permute(2, 0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:  # pyright: ignore
        return torch.as_strided(upstream, upstream.shape, (24 * 40, 40, 1)).permute(1, 2, 0)


FASTER_GS = "w2c cam_position bg_color active_sh_bases width height focal_x focal_y center_x center_y near_plane"


def draw_faster_gs(means: Any, scales: Any, rotations: Any, opacities: Any, first: Any, rest: Any) -> Any:
    assert all(p.is_contiguous() for p in (means, scales, rotations, opacities, first, rest))
    unit = torch.nn.functional.normalize(rotations, dim=-1)
    sh = torch.cat([first, rest], 1)
    return Planes.apply(picture(means, unit, scales.exp(), torch.sigmoid(opacities[:, 0]), sh))


def fake_faster_gs() -> ModuleType:
    module: Any = ModuleType("FasterGSCudaBackend")
    module.__version__ = "0"
    module.RasterizerSettings = namedtuple("RasterizerSettings", f"{FASTER_GS} far_plane proper_antialiasing")
    module.FusedAdam = torch.optim.Adam

    def diff_rasterize(
        means: Any, scales: Any, rotations: Any, opacities: Any, first: Any, rest: Any, statistics: Any, settings: Any
    ) -> Any:
        module.settings, module.statistics = settings, statistics
        return draw_faster_gs(means, scales, rotations, opacities, first, rest)

    def rasterize(*rest: Any, to_chw: bool, clamp_output: bool) -> Any:
        *parameters, module.settings = rest
        assert not to_chw
        assert not clamp_output
        return 2 * draw_faster_gs(*parameters).permute(1, 2, 0)  # to be told from the other

    module.diff_rasterize, module.rasterize = diff_rasterize, rasterize
    return module


SETTINGS_2023 = "image_height image_width tanfovx tanfovy bg scale_modifier viewmatrix projmatrix sh_degree campos"
SETTINGS_2023 += " prefiltered debug"
FAKES = {
    "gsplat": fake_gsplat,
    "inria": lambda: fake_inria(SETTINGS_2023),
    "faster_gs": fake_faster_gs,
}


def wanted_gradients(upstream: Any) -> dict[str, Any]:
    """Returns the gradients of the raw parameters, by autograd through their activations."""
    raw = [getattr(given(), name).requires_grad_() for name in PARAMETERS]
    means, log_scales, quats, logits, sh = raw
    unit = torch.nn.functional.normalize(quats, dim=-1)
    image = picture(means, unit, log_scales.exp(), torch.sigmoid(logits), sh)
    return dict(zip(PARAMETERS, torch.autograd.grad(image, raw, upstream), strict=True))


@pytest.mark.parametrize("name", FAKES)
def test_gradients_of_every_adapter_are_those_of_our_raw_parameters(name: str) -> None:
    upstream = torch.from_numpy(np.random.default_rng(1).standard_normal((24, 40, 3)))
    wanted = wanted_gradients(upstream)
    for peer in PEERS[name].make(FAKES[name]()):
        peer.prepare(given())
        image = peer.forward()
        assert image.shape == (24, 40, 3)
        raw = peer.raw_gradients(peer.backward(image, upstream))
        for parameter, gradient in wanted.items():
            torch.testing.assert_close(raw[parameter].reshape(gradient.shape), gradient, msg=f"{peer.name} {parameter}")
        differences = rasterisers.compare(peer, upstream, image.detach() + 0.5, {**wanted, "sh": 2 * wanted["sh"]})
        assert differences["image_mean_difference"] == pytest.approx(0.5)
        assert differences["gradient_differences"] == pytest.approx(
            dict.fromkeys(PARAMETERS, 0.0) | {"sh": 0.5}, abs=1e-9
        )
        peer.release()


def test_gsplat_gets_the_camera_and_both_of_its_ways() -> None:
    module: Any = fake_gsplat()
    rasterisers = PEERS["gsplat"].make(module)
    for peer in rasterisers:
        peer.prepare(given())
        peer.forward()
    assert [(peer.name, peer.version) for peer in rasterisers] == [
        ("gsplat, unpacked", "9.9"),
        ("gsplat, packed", "9.9"),
    ]
    assert [options["packed"] for _, options in module.calls] == [False, True]
    (view, intrinsics, width, height), options = module.calls[0]
    np.testing.assert_allclose(view[0], CAMERA.matrix)
    np.testing.assert_allclose(intrinsics[0], [[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]])
    assert (width, height, options["sh_degree"], options["near_plane"]) == (40, 24, 2, CAMERA.near)


@pytest.mark.parametrize("fields", [SETTINGS_2023, f"{SETTINGS_2023} antialiasing"])
def test_the_2023_rasteriser_projects_points_where_our_camera_does(fields: str) -> None:
    module: Any = fake_inria(fields)
    (peer,) = PEERS["inria"].make(module)
    peer.prepare(given())
    point = np.append(SCENE.means[0], 1).astype(np.float64)
    x, y, z, _ = CAMERA.matrix @ point
    clip = point @ module.settings.projmatrix.numpy()  # row vectors
    pixel = ((clip[:2] / clip[3] + 1) * (CAMERA.width, CAMERA.height) - 1) / 2  # of a pixel's centre, whole numbers
    np.testing.assert_allclose(pixel + 0.5, [CAMERA.fx * x / z + CAMERA.cx, CAMERA.fy * y / z + CAMERA.cy])
    np.testing.assert_allclose(point @ module.settings.viewmatrix.numpy(), [x, y, z, 1])
    assert module.settings.tanfovx == pytest.approx(CAMERA.width / CAMERA.fx / 2)


def test_faster_gs_gets_the_camera_in_pixels_and_one_gradient_laid_out_once() -> None:
    module: Any = fake_faster_gs()
    (peer,) = PEERS["faster_gs"].make(module)
    peer.prepare(given())
    upstream = torch.from_numpy(np.random.default_rng(3).standard_normal((24, 40, 3)))
    first = peer.backward(peer.forward(), upstream)
    again = peer.backward(peer.forward(), upstream)
    other = peer.backward(peer.forward(), 2 * upstream)
    for a, b, c in zip(first, again, other, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(2 * a, c)
    with torch.no_grad():
        viewed = peer.forward()
    torch.testing.assert_close(viewed, 2 * peer.forward().detach())
    s = module.settings
    np.testing.assert_allclose(s.w2c, CAMERA.matrix)
    np.testing.assert_allclose(s.cam_position, CAMERA.position)
    assert (s.focal_x, s.focal_y, s.center_x, s.center_y) == (CAMERA.fx, CAMERA.fy, CAMERA.cx, CAMERA.cy)
    assert (s.active_sh_bases, s.near_plane, s.width, s.height) == (9, CAMERA.near, 40, 24)
    assert not s.bg_color.any()
    assert len(module.statistics) == 0


def test_what_is_not_installed_is_said_and_what_is_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in PEERS.values():
        for name in kind.modules:
            monkeypatch.setitem(sys.modules, name, None)  # import fails
    rasterisers, absent = find_peers(("all",))
    assert rasterisers == []
    assert len(absent) == len(PEERS)
    assert all("is not installed" in sentence and "https://" in sentence for sentence in absent)
    with pytest.raises(InputError, match=r"gsplat is not installed.*docs\.gsplat\.studio"):
        find_peers(("gsplat",))
    monkeypatch.setitem(sys.modules, "gsplat", fake_gsplat())
    rasterisers, absent = find_peers(("gsplat", "inria"))
    assert len(rasterisers) == 2
    assert [sentence.split()[0] for sentence in absent] == ["inria"]
    assert find_peers(()) == ([], [])
    with pytest.raises(InputError, match="--vs must be of all, gsplat, inria, faster_gs; got 'other'"):
        find_peers(("other",))


def test_a_build_that_does_not_load_is_told_from_one_that_is_missing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gsplat.py").write_text("raise ImportError('undefined symbol: _ZN2at\\nmore')")
    (tmp_path / "FasterGSCudaBackend.py").write_text("import no_such_module_of_its_own")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("gsplat", "FasterGSCudaBackend"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    said = {sentence.split()[0]: sentence for sentence in find_peers(("all",))[1]}
    gsplat, faster_gs = said["gsplat"], said["faster_gs"]
    assert gsplat.startswith("gsplat is installed but does not load (undefined symbol: _ZN2at), so it is not")
    assert faster_gs.startswith("faster_gs is installed but needs no_such_module_of_its_own, which is not")
