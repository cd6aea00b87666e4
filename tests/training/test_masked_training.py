"""Tests training, scoring and comparing with masks: pixels that a mask leaves out have no effect."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from splatscope.app.main import main
from splatscope.assets.capture import Capture
from splatscope.assets.formats import open_capture
from splatscope.kernels.backend import Backend
from splatscope.kernels.backends import make_backend
from splatscope.kernels.errors import InputError
from splatscope.training.config import DataConfig, DensifyConfig, ResolutionConfig
from splatscope.training.data.dataset import Dataset, load_photograph
from splatscope.training.events import Prepared
from splatscope.training.scores.scorer import score_view
from splatscope.training.trainer import Trainer
from tests.support.places import DATA
from tests.support.small_capture import SHORT, make_capture

DATA = DATA / "train"
MAGENTA, GREEN = (255, 0, 255), (0, 255, 0)
COUNT = 24


@pytest.fixture(scope="module")
def backend() -> Backend:
    return make_backend("cpu")


def passer_by(index: int, width: int, height: int) -> np.ndarray:
    """Returns bool [H, W], true on something that is elsewhere in every photograph."""
    hidden = np.zeros((height, width), bool)
    left = round((0.1 + 0.6 * (index * 0.37 % 1)) * width)
    hidden[height // 4 :, left : left + width // 4] = True
    return hidden


def write_masked_set(folder: Path, garbage: tuple[int, int, int] | None, unmasked: int = -1) -> Path:
    """Returns the small capture with transforms.json, something of one colour in every photograph, and masks without
    it; none for the photograph `unmasked`, which shows all.
    """
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    frames = []
    for index, view in enumerate(make_capture(folder / "images").views):
        world_from_view = np.linalg.inv(view.camera.matrix) @ np.diag([1, -1, -1, 1])
        frames.append({"file_path": f"images/{view.name}", "transform_matrix": world_from_view.tolist()})
        if index == unmasked:
            continue
        frames[-1]["mask_path"] = f"masks/{view.name}"
        hidden = passer_by(index, 72, 56)
        pixels = np.array(Image.open(view.image_path))
        if garbage is not None:
            pixels[hidden] = garbage
        Image.fromarray(pixels).save(view.image_path)
        Image.fromarray(~hidden * np.uint8(255)).save(folder / "masks" / view.name)
    content = {"fl_x": 80, "fl_y": 80, "cx": 36, "cy": 28, "w": 72, "h": 56, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder


def trained(trainer: Trainer) -> Trainer:
    for _ in trainer.run():
        pass
    return trainer


def magenta_in(trainer: Trainer, backend: Backend, capture: Capture) -> float:
    """Returns the excess of red and blue over green, mean over the pixels of all views of a capture."""
    pictures = [backend.render(trainer.gaussians, view.camera, trainer.settings).image for view in capture.views]
    return float(np.mean([np.maximum(np.minimum(p[..., 0], p[..., 2]) - p[..., 1], 0) for p in pictures]))


def test_what_is_masked_out_changes_no_bit_of_the_result_at_any_size(tmp_path: Path, backend: Backend) -> None:
    """Covers full size, half size, growing pictures, and scores."""
    for resolution, downscales in ((1, 0), (2, 0), (1, 1), (40, 0)):
        results = []
        for garbage in (MAGENTA, GREEN):
            folder = tmp_path / f"{garbage}"
            if not folder.exists():
                write_masked_set(folder, garbage)
            data = DataConfig(eval=True, resolution=resolution)
            sizes = ResolutionConfig(num_downscales=downscales, interval=20)
            config = replace(SHORT, data=data, resolution=sizes, initial=replace(SHORT.initial, random_count=300))
            trainer = trained(Trainer(open_capture(folder), config, backend, folder / f"{resolution} {downscales}"))
            results.append((trainer.snapshot().group("raw"), [row["psnr"] for row in trainer.scores]))
        (first, scores), (second, other_scores) = results
        assert all(torch.equal(first[name], second[name]) for name in first), resolution
        assert scores == other_scores


@pytest.mark.skipif(not DATA.exists(), reason="the shared test data is not here")
def test_what_stands_in_front_of_a_real_scene_is_gone_with_masks_and_there_without(
    tmp_path: Path, backend: Backend
) -> None:
    for name in ("clean", "spoilt"):
        (tmp_path / name / "images").mkdir(parents=True)
        shutil.copytree(DATA / "tumbler/sparse", tmp_path / name / "sparse")
    (tmp_path / "spoilt/masks").mkdir()
    for index, path in enumerate(sorted((DATA / "tumbler/images").iterdir())):
        with Image.open(path) as image:
            pixels = np.array(image.resize((160, 120), Image.Resampling.BOX))
        Image.fromarray(pixels).save(tmp_path / f"clean/images/{path.stem}.png")
        hidden = passer_by(index, 160, 120)
        pixels[hidden] = MAGENTA
        Image.fromarray(pixels).save(tmp_path / f"spoilt/images/{path.stem}.png")
        Image.fromarray(~hidden * np.uint8(255)).save(tmp_path / f"spoilt/masks/{path.name}.png")
    clean, spoilt = open_capture(tmp_path / "clean"), open_capture(tmp_path / "spoilt")
    config = replace(SHORT, iterations=500, test_interval=0, densify=DensifyConfig(start=100, reset_interval=1000))
    psnr, magenta = {}, {}
    with_masks, without = DataConfig(eval=True), DataConfig(eval=True, masks="ignore")
    for name, capture, data in (
        ("clean", clean, with_masks),
        ("masked", spoilt, with_masks),
        ("whole", spoilt, without),
    ):
        trainer = trained(Trainer(capture, replace(config, data=data), backend, tmp_path / "out" / name))
        unspoilt = [load_photograph(view, data, (0, 0, 0)) for view in Dataset(clean, data).held_out_views]
        scores = [score_view(backend, trainer.gaussians, view, trainer.settings) for view in unspoilt]
        psnr[name] = float(np.mean([score[0] for score in scores]))
        magenta[name] = magenta_in(trainer, backend, clean)
    assert psnr["masked"] > psnr["clean"] - 1
    assert psnr["whole"] < psnr["masked"] - 1
    assert magenta["masked"] < 2 * magenta["clean"]
    assert magenta["whole"] > 5 * magenta["clean"]


# ------------------------------------------------------------------------------------- what is said


def splatscope(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a finished run over photographs; one has no mask, and a held-out one is masked everywhere."""
    folder = write_masked_set(tmp_path_factory.mktemp("set") / "small", MAGENTA, unmasked=16)
    Image.new("L", (72, 56)).save(folder / "masks/08.png")
    options = ("--iterations", 30, "--init", "random", "--set", "initial.random_count=200", "--backend", "cpu")
    splatscope("train", folder, "--headless", "--eval", "--out", folder / "out", *options)
    return folder / "out"


def opening(capture: Capture, config: DataConfig, backend: Backend, out: Path) -> Prepared:
    trainer = Trainer(capture, replace(SHORT, data=config), backend, out)
    return next(event for event in trainer.run() if isinstance(event, Prepared))


def test_the_first_lines_say_what_masks_leave_out(
    run: Path, tmp_path: Path, backend: Backend, capsys: pytest.CaptureFixture
) -> None:
    capture = open_capture(run.parent)
    hidden = [np.mean(np.array(Image.open(view.mask.path)) == 0) for view in capture.views if view.mask]
    prepared = opening(capture, DataConfig(eval=True), backend, tmp_path)
    assert prepared.masks == (
        f"Masks leave out {np.mean(hidden):.1%} of the pixels of 23 photographs; 1 without a mask counts whole."
    )
    assert prepared.warnings == (
        "Masked everywhere, so nothing is learned from them: 1 photograph, for example images/08.png. If that is not "
        "meant, make those masks again, or remove them to train whole photographs.",
    )
    inverted = opening(capture, DataConfig(eval=True, masks="invert"), backend, tmp_path).masks
    assert f"Masks, inverted, leave out {1 - np.mean(hidden):.1%} of the pixels" in inverted
    ignored = opening(capture, DataConfig(masks="ignore"), backend, tmp_path)
    assert ignored.masks == "The masks of 23 photographs are not used (data.masks = ignore)."
    assert not ignored.warnings
    options = ("--headless", "--masks", "ignore", "--iterations", 1, "--backend", "cpu", "--out", tmp_path / "out")
    splatscope("train", run.parent, *options)
    assert "24 views to train on, 72x56; 10,000 splats" not in (said := capsys.readouterr().out)
    assert "The masks of 23 photographs are not used (data.masks = ignore)." in said


def test_eval_says_which_views_are_masked_and_how_that_is_scored(run: Path, capsys: pytest.CaptureFixture) -> None:
    splatscope("eval", run, "--precision", "float", "--backend", "cpu")
    said = capsys.readouterr().out
    lines = {line.split(":")[0]: line for line in said.splitlines() if line.startswith("images/")}
    assert list(lines) == ["images/00.png", "images/16.png"]  # 08.png is masked everywhere
    share = np.mean(np.array(Image.open(run.parent / "masks/00.png")) > 0)
    assert lines["images/00.png"].endswith(f", over {share:.1%} of its pixels")
    assert "over" not in lines["images/16.png"]
    words = (
        "1 of 3 views masked in part: those pixels are left out of PSNR, and black in both pictures for SSIM and "
        "LPIPS; 1 view masked everywhere and not scored"
    )
    assert words in said
    folder = run / "test/ours_30"
    protocol = json.loads((folder / "protocol.json").read_text())
    assert protocol["masks"] == words
    assert protocol["views"] == {"00000.png": "images/00.png", "00001.png": "images/16.png"}
    assert sorted(path.name for path in (folder / "renders").iterdir()) == ["00000.png", "00001.png"]
    measured = json.loads((run / "metrics.json").read_text())["scores"][-1]
    assert json.loads((run / "results.json").read_text())["ours_30"]["PSNR"] == pytest.approx(
        measured["psnr"], abs=1e-4
    )


def test_masks_that_leave_nothing_of_any_photograph_end_a_run_before_it_begins(tmp_path: Path) -> None:
    folder = write_masked_set(tmp_path / "set", MAGENTA)
    for path in (folder / "masks").iterdir():
        Image.new("L", (72, 56)).save(path)
    with pytest.raises(
        InputError, match=r"Masks leave out every pixel of 24 photographs, .* train with --masks invert"
    ):
        list(Dataset(open_capture(folder), DataConfig()).load())
    assert len(list(Dataset(open_capture(folder), DataConfig(masks="invert")).load())) == COUNT
    for path in (folder / "masks").iterdir():
        Image.new("L", (72, 56), 255).save(path)
    with pytest.raises(InputError, match=r"inverted, leave out every pixel .* train with --masks use"):
        list(Dataset(open_capture(folder), DataConfig(masks="invert")).load())


def test_a_mask_that_is_damaged_within_is_named_and_its_photograph_counts_whole(
    tmp_path: Path, backend: Backend
) -> None:
    folder = write_masked_set(tmp_path / "set", MAGENTA)
    path = folder / "masks/05.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (56, 72), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    prepared = opening(open_capture(folder), DataConfig(), backend, tmp_path / "out")
    (said,) = prepared.warnings
    assert said.startswith("Trained whole, without their masks: 1 photograph. ")
    assert said.endswith("masks/05.png is damaged or cut short and cannot be decoded. Copy it again.")
    assert "of 23 photographs; 1 without a mask counts whole." in prepared.masks
    assert prepared.training_views == COUNT
