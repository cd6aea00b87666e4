"""Tests the command line as a person meets it: real files, exit statuses and sentences; real processes where they
matter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_origin, get_type_hints

import numpy as np
import pytest

from splatscope.app.main import main
from splatscope.app.options import subcommands
from splatscope.app.options.subcommands import EvalOptions, TrainOptions, ViewOptions
from splatscope.assets.photographs.images import read_image
from splatscope.assets.splats.ply import write_ply
from splatscope.assets.trained.cameras import write_camera
from splatscope.kernels.backends import gpu_is_present, make_backend
from splatscope.kernels.errors import InputError
from splatscope.kernels.types import Camera, Gaussians, RenderSettings

Ended = subprocess.CompletedProcess[str]


def splatscope(*arguments: object, display: bool = False) -> Ended:
    """Runs the program with these arguments in a process of its own."""
    environment = dict(os.environ)
    if not display:
        environment.pop("DISPLAY", None)
        environment.pop("WAYLAND_DISPLAY", None)
    command = [sys.executable, "-m", "splatscope.app", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs a command line in this process, without a display, which takes a tenth of a process's time."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ended:
        status: object = 0
        capsys.readouterr()
        words = [str(argument) for argument in arguments]
        try:
            main(words)
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr()
        return Ended(words, int(str(status)), said.out, said.err)

    return run


def few_splats(count: int = 50) -> Gaussians:
    rng = np.random.default_rng(5)
    return Gaussians(
        rng.normal(0, 0.5, (count, 3)).astype(np.float32),
        rng.uniform(-3, -2, (count, 3)).astype(np.float32),
        rng.normal(0, 1, (count, 4)).astype(np.float32),
        rng.normal(0, 1, count).astype(np.float32),
        rng.normal(0, 0.4, (count, 4, 3)).astype(np.float32),
    )


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene with spaces.ply"
    write_ply(path, few_splats())
    return path


CAMERA = Camera.from_matrix(
    [[1, 0, 0, 0.1], [0, 1, 0, 0], [0, 0, 1, 3], [0, 0, 0, 1]], width=70, height=50, fx=60, fy=62, cx=33.5, cy=26
)


def test_render_writes_the_float_image_of_the_given_camera(scene: Path, tmp_path: Path) -> None:
    write_camera(tmp_path / "camera.json", CAMERA)
    result = splatscope(
        "render", scene, "--camera", tmp_path / "camera.json", "--out", tmp_path / "a.png", "--npy", tmp_path / "a.npy",
        "--background", "0.2,0.4,1", "--stats", tmp_path / "a.json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    expected = make_backend("cpu").render(few_splats(), CAMERA, RenderSettings(background=(0.2, 0.4, 1.0)))
    image = np.load(tmp_path / "a.npy")
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, expected.image)
    png = read_image(tmp_path / "a.png")
    assert np.abs(png.astype(np.float32) - np.clip(image, 0, 1) * 255).max() <= 0.5001
    stats = json.loads((tmp_path / "a.json").read_text())
    assert stats["instances"] == expected.instances == expected.tile_counts.sum()
    assert set(stats["stage_ms"]) == set(expected.stage_ms)


def test_render_on_the_cpu_never_imports_torch(scene: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from splatscope.app.main import main\n"
        f"main(['render', {str(scene)!r}, '--out', {str(tmp_path / 'x.png')!r}, '--size', '64x48'])\n"
        "assert 'torch' not in sys.modules and 'dearpygui' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert read_image(tmp_path / "x.png").shape == (48, 64, 3)


def test_the_tile_overlay_is_larger_than_nothing_and_carries_a_legend(
    scene: Path, tmp_path: Path, here: Callable[..., Ended]
) -> None:
    plain, heat = tmp_path / "plain.png", tmp_path / "heat.png"
    assert here("render", scene, "--out", plain, "--size", "320x240").returncode == 0
    assert here("render", scene, "--out", heat, "--size", "320x240", "--overlay", "tiles").returncode == 0
    assert read_image(heat).shape[1] >= 320
    assert not np.array_equal(read_image(heat)[:240, :320, :3], read_image(plain))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["render", "missing.ply", "--out", "a.png"], ["missing.ply", "no file or folder"]),
        (["render", "SCENE"], ["--out", "--npy"]),
        (["render", "SCENE", "--out", "a.jpg"], [".png", "a.jpg"]),
        (["render", "SCENE", "--out", "a.png", "--size", "0x9"], ["--size", "0x9"]),
        (["render", "SCENE", "--out", "a.png", "--background", "2,0,0"], ["--background", "2,0,0"]),
        (["render", "SCENE", "--out", "a.png", "--view", "x"], ["--dataset", "--view"]),
        (["render", "SCENE", "--out", "/proc/a.png"], ["/proc"]),
        (["render", "SCENE", "--out", "a.png", "--npy", "a.png"], ["--npy", ".npy"]),
        (["render", "SCENE", "--npy", "SCENE"], ["--npy", ".npy"]),
        (["render", "SCENE", "--out", "a.png", "--stats", "SCENE"], ["--stats", ".json"]),
        (["render", "SCENE", "--out", "a.png", "--camera", "x" * 300], ["xxx", "name too long"]),
        (["convert", "SCENE", "x" * 300 + ".ply"], ["xxx", "name too long"]),
        (["train", "x" * 300, "--headless"], ["xxx", "name too long"]),
        (["doctor", "/nowhere/\udcff"], ["\\udcff", "no file or folder"]),
        (["doctor", "/dev/zero"], ["/dev/zero", "pipe or device"]),
        (["doctor", "/nowhere", "-r", "0"], ["-r", "got 0"]),
        (["doctor", "/nowhere", "--iterations", "0"], ["iterations", "got 0"]),
        (["render", "SCENE", "--out", "a.png", "--camera", "/dev/zero"], ["/dev/zero", "regular file"]),
        (["render", "SCENE", "--out", "a.png", "--size", "30000x30000"], ["--size", "16384"]),
        (["train"], ["needs a capture"]),
        (["train", "/nowhere", "--set", "iterations=5", "--set", "iteratons=6"], ["no training setting 'iteratons'"]),
        (["train", "/nowhere", "--set", "seed=5", "seed=6"], ["sets seed twice, to 5 and to 6"]),
        (["train", "/nowhere", "--size", "0x9"], ["--size", "0x9"]),
        (["bench", "--train", "x", "--recipe", "fast"], ["`bench --train` is now `splatscope bench runs x --recipe"]),
        (["bench", "runs", ".", "--recipe", "fast", "--set", "sed=5"], ["no training setting 'sed'"]),
        (["train", "SCENE", "--out", ""], ["--out has no value", "shell variable"]),
        (["train", "--resume="], ["--resume has no value"]),
        (["view", ""], ["An argument is empty"]),
        (["train", "SCENE", "--headless"], ["SCENE", "photographs"]),
        (["train", "/nowhere", "--headless"], ["/nowhere"]),
        (["SCENE"], ["display"]),
        (["view", "/nowhere.ply"], ["/nowhere.ply"]),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_status_2(
    arguments: list[str], words: list[str], scene: Path, here: Callable[..., Ended]
) -> None:
    arguments = [str(scene) if a == "SCENE" else a for a in arguments]
    words = [scene.name if w == "SCENE" else w for w in words]
    check_refused(here(*arguments), words)


def test_a_process_ends_with_the_same_sentence_and_status_whatever_bytes_it_is_given(scene: Path) -> None:
    check_refused(splatscope(scene), ["display"])
    check_refused(splatscope("doctor", "/nowhere/\udcff"), ["\\udcff", "no file or folder"])


def check_refused(result: Ended, words: list[str]) -> None:
    """Checks that a command line was refused with status 2, in one line that has these words in it."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("splatscope: ")
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word.lower() in result.stderr.lower()


def test_a_convert_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    write_ply(tmp_path / "many.ply", few_splats(200_000))
    (tmp_path / "out").mkdir()
    command = ["convert", tmp_path / "many.ply", tmp_path / "out/a.ply", "--encoding", "ascii"]
    process = subprocess.Popen([sys.executable, "-m", "splatscope.app", *map(str, command)], stderr=subprocess.PIPE)
    while process.poll() is None and not any((tmp_path / "out").iterdir()):
        time.sleep(0.01)
    process.terminate()
    assert process.communicate(timeout=300)[1] == b"splatscope: stopped.\n"
    assert process.returncode == 130
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(gpu_is_present(), reason="a GPU is here, so --backend cuda works")
def test_cuda_without_a_gpu_is_one_sentence_that_names_the_way_out(scene: Path, tmp_path: Path) -> None:
    result = splatscope("render", scene, "--out", tmp_path / "a.png", "--backend", "cuda")
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("splatscope: ")
    assert "CUDA" in result.stderr
    assert "--backend cpu" in result.stderr


def test_version_and_help_answer() -> None:
    assert splatscope("--version").stdout.startswith("splatscope ")
    help_text = splatscope("--help").stdout
    for name in ("view", "train", "render", "bench", "demo"):
        assert name in help_text


def test_names_accept_dashes_and_underscores_and_the_short_forms() -> None:
    expected = TrainOptions(source_path=Path("data"), out=Path("o"), resolution=2, white_background=True, eval=True)
    for words in (
        "train --source_path data --model_path o --resolution 2 --white_background --eval",
        "train --source-path data --model-path o --resolution 2 --white-background --eval",
        "train -s data -m o -r 2 -w --eval",
    ):
        assert subcommands.parse(words.split()) == expected
    assert subcommands.parse(["train", "data", "-r", "-1"]) == TrainOptions(dataset=Path("data"), resolution=-1)


@pytest.mark.parametrize(("kind", "name"), [(TrainOptions, "train"), (EvalOptions, "eval")])
def test_options_of_several_values_add_up_when_they_are_given_again(
    kind: type, name: str, here: Callable[..., Ended]
) -> None:
    several = [field for field, hint in get_type_hints(kind).items() if get_origin(hint) is tuple]
    assert len(several) == {"train": 4, "eval": 1}[name]
    first, second = "7", "8"
    for field in several:
        option, path = f"--{field.replace('_', '-')}", ["x"]
        options = subcommands.parse([name, *path, option, first, first, option, second])
        assert [str(value) for value in getattr(options, field)] == [first, first, second]
        with pytest.raises(InputError, match=f"{option} needs a value"):
            subcommands.parse([name, *path, option, first, option])
    text = " ".join(re.sub(r"[│\n]", " ", here(name, "--help").stdout).split())
    assert text.count("(may be repeated)") == len(several)


def test_a_path_alone_means_view() -> None:
    assert subcommands.parse(["scene.ply"]) == ViewOptions(path=Path("scene.ply"))
    assert subcommands.parse([]) == ViewOptions()
    assert subcommands.parse(["./train.ply"]) == ViewOptions(path=Path("train.ply"))
