#!/usr/bin/env bash
# One visit to a machine with an NVIDIA GPU: what it is, and these parts, in this order, or those that are named:
#
#     tests      the device tests                                       gpu-tests.log
#     training   whole training steps on S4, S1, S2                     train-step.json
#     ladder     every step on S4, S2, S3, S1, on S1 also every toggle  ladder-S4-S2.json, -S3.json, -S1.json
#     primitives s01, best on S4, S1, S2 as all three primitives        primitives.json, schedule-2dgs.json, …
#     viewing    S2 at 1920x1080                                        viewing.json
#     ablate     backward blend and sort taken apart on S1 and S2       ablate.json
#     sanitizer  memcheck, racecheck, synccheck on a small scene        sanitizer.log
#     peers      installed rasterisers beside s00, s06, best; only if named, they must be on PYTHONPATH   peers.json
#
#     benchmarks/gpu_check.sh OUT_DIR [PART...]
#
# Needs no installation: a folder with a link makes the checkout importable; PYTHON names another interpreter than
# python3. Every part has its own time limit, and what follows runs even if it failed; all of it takes less than nine
# minutes, and what would not fit is left out and said.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
parts=" ${*:-tests training ladder primitives viewing ablate sanitizer} "
for part in $parts; do
    case $part in
    tests | training | ladder | primitives | viewing | ablate | sanitizer | peers) ;;
    *) echo "There is no part $part; parts are tests, training, ladder, primitives, viewing, ablate, sanitizer, peers." && exit 2 ;;
    esac
done
python=${PYTHON:-python3}
longest=530 # seconds
root=$(cd "$(dirname "$0")/.." && pwd)
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
ln -s "$root" "$links/splatscope"
if ! "$python" -c 'import platformdirs' 2>/dev/null; then
    # All that is asked of it: where compiled kernels are kept.
    printf 'import pathlib, tempfile\n\n\ndef user_cache_dir(name, *_, **__):\n    return str(pathlib.Path(tempfile.gettempdir()) / f"{name}-cache")\n' \
        >"$links/platformdirs.py"
fi
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if ! "$python" -c 'import plyfile' 2>/dev/null; then
    # No file is read here, but what could read one is imported.
    printf 'def __getattr__(name):\n    return type(name, (), {})\n' >"$links/plyfile.py"
fi
if ! "$python" -c 'import tyro' 2>/dev/null; then
    # No command line is parsed here, but options are declared with it.
    mkdir "$links/tyro" && touch "$links/tyro/__init__.py"
    printf 'def __getattr__(name):\n    return lambda *_, **__: None\n' >"$links/tyro/conf.py"
fi
cd "$root" || exit 1

failed=0
wanted() { [[ $parts == *" $1 "* ]]; }
part() { # part NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    ((limit = limit < longest - SECONDS ? limit : longest - SECONDS))
    if ((limit < 10)); then
        echo "== $name: left out, there is no time for it"
        failed=1
        return
    fi
    echo "== $name"
    timeout -k 5 "$limit" "$@"
    local status=$?
    echo "== $name: exit status $status after $((SECONDS - start)) s"
    [ $status -eq 0 ] || failed=1
}

nvidia-smi || { echo "There is no NVIDIA GPU here."; exit 1; }
"$python" - <<'PROGRAM'
import importlib.util
import sys
print("python", sys.version.split()[0])
for name in ("torch", "cupy", "numpy", "numba", "platformdirs", "scipy", "rich", "pytest", "pynvml", "gsplat"):
    module = __import__(name) if importlib.util.find_spec(name) else None
    print(name, getattr(module, "__version__", "present") if module else "missing")
PROGRAM
for tool in ncu nsys compute-sanitizer nvcc cuobjdump; do
    command -v "$tool" || echo "$tool: not found"
done

if wanted tests; then
    part "device tests" 330 bash -c "set -o pipefail; '$python' -m pytest -v -p no:cacheprovider --durations=15 -o faulthandler_timeout=60 \
        tests/*/test_*_gpu.py 2>&1 | tee '$out/gpu-tests.log' | tail -150"
fi

cat >"$links/measure.py" <<'PROGRAM'
"""measure.py BENCHMARK FILE NAME=VALUE...: runs a benchmark of `splatscope bench` without a parser of command lines.

Names are those of its options, with underscores; several values have commas between them.
"""
import sys
from importlib import import_module
from pathlib import Path

from splatscope.app.options.bench import SUBCOMMANDS

benchmark, file, *settings = sys.argv[1:]
kind, given = SUBCOMMANDS[benchmark], {}
for name, _, value in (setting.partition("=") for setting in settings):
    default = getattr(kind, name)
    if isinstance(default, tuple):
        value = value.split(",")
    given[name] = value if default is None else type(default)(value)
import_module(f"splatscope.app.bench.{benchmark}").run(kind(**given, out=Path(file)))
PROGRAM
measure() { # measure NAME SECONDS BENCHMARK FILE SETTING...
    local name=$1 limit=$2 benchmark=$3 file=$4
    shift 4
    part "$name" "$limit" "$python" "$links/measure.py" "$benchmark" "$out/$file" "$@"
}

if wanted training; then
    measure "training steps" 60 step train-step.json scenes=S4,S1,S2
fi
if wanted ladder; then
    measure "ladder on S4, S2" 110 ladder ladder-S4-S2.json scenes=S4,S2
    measure "ladder on S3" 90 ladder ladder-S3.json scenes=S3
    measure "ladder on S1" 120 ladder ladder-S1.json scenes=S1 toggles=yes
fi
if wanted primitives; then
    measure "primitives" 150 ladder primitives.json scenes=S4,S1,S2 steps=s01,best primitive=2dgs,3dgut
    for primitive in 2dgs 3dgut; do
        measure "schedules of $primitive" 90 schedule "schedule-$primitive.json" scenes=S3,S1,crowded:10 \
            "variants=grid,lpt,CaT-GS,seed's policy,policy" frames=3 "primitive=$primitive"
    done
fi
if wanted viewing; then
    measure viewing 50 ladder viewing.json scenes=S2 size=1920x1080 steps=s01,s06,best
fi
if wanted ablate; then
    measure ablate 90 ablate ablate.json scenes=S1,S2
fi
if wanted peers; then
    measure peers 200 ladder peers.json scenes=S4,S1,S2,S3 steps=s00,s06,best vs=all
fi

cat >"$links/one_frame.py" <<'PROGRAM'
"""One frame forward and backward under a few policies, launched one by one: for the sanitizer."""
import numpy as np
import torch

from splatscope.kernels.cuda.renderer import Renderer
from splatscope.kernels.ladder import changed, step
from tests.support.small_scenes import as_primitive, random_camera, random_scene

renderer, camera = Renderer(), random_camera(64, 48)
split = {"schedule.chunk": "fixed"}
runs = [("3dgs", name, {}) for name in ("s00", "s01", "s06", "best")] + [("3dgs", "best", split)]
runs += [(primitive, name, {}) for primitive in ("2dgs", "3dgut") for name in ("s01", "best")]
for primitive, name, changes in runs:
    scene = renderer.upload(as_primitive(random_scene(camera, 200, seed=3), primitive))
    policy = changed(step(name), changes | {"launch.mode": "direct"})
    renderer.complete(lambda s=scene, p=policy: renderer.forward(s, camera, policy=p, training=True, wants_depth=True))
    renderer.backward(torch.ones((48, 64, 3), device="cuda"))
    torch.cuda.synchronize()
    print(primitive, name, *changes, "done", flush=True)
PROGRAM
if wanted sanitizer && command -v compute-sanitizer >/dev/null; then
    : >"$out/sanitizer.log"
    for tool in memcheck racecheck synccheck; do
        part "$tool" 35 bash -c "set -o pipefail; PYTHONPATH='$root:$PYTHONPATH' compute-sanitizer --tool $tool \
            --error-exitcode 9 '$python' '$links/one_frame.py' 2>&1 | tee -a '$out/sanitizer.log' | tail -25"
    done
fi
exit $failed
