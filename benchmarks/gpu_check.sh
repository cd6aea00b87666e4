#!/usr/bin/env bash
# One visit to a machine with an NVIDIA GPU: what it is, the device tests, the ladder on S1 to S4, the sanitizer.
#
#     benchmarks/gpu_check.sh OUT_DIR [PYTHON]
#
# Needs no installation: a folder with a link makes the checkout importable. Every part has its own time limit, and
# what follows runs even if it failed; all of it takes less than nine minutes. OUT_DIR gets ladder-<scene>.json,
# gpu-tests.log and sanitizer.log.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
ln -s "$root" "$links/splatscope"
if ! "$python" -c 'import platformdirs' 2>/dev/null; then
    # All that is asked of it: where compiled kernels are kept.
    printf 'import pathlib, tempfile\n\n\ndef user_cache_dir(name):\n    return str(pathlib.Path(tempfile.gettempdir()) / f"{name}-cache")\n' \
        >"$links/platformdirs.py"
fi
export PYTHONPATH="$links${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
cd "$root" || exit 1

failed=0
part() { # part NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS
    shift 2
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

part "device tests" 150 bash -c "set -o pipefail; '$python' -m pytest -q -p no:cacheprovider --durations=5 \
    tests/test_cuda_on_gpu.py tests/test_cuda_backend_gpu.py 2>&1 | tee '$out/gpu-tests.log' | tail -150"

for entry in S4:40 S1:90 S2:80 S3:60; do
    scene=${entry%:*}
    part "ladder on $scene" "${entry#*:}" "$python" -c "
from pathlib import Path
from splatscope.app.bench_cuda import LadderOptions, run_ladder
run_ladder(LadderOptions(scenes=('$scene',), repeat=20, toggles='$scene' == 'S1', out=Path('$out/ladder-$scene.json')))"
done

cat >"$links/one_frame.py" <<'PROGRAM'
"""One frame forward and backward under a few policies, launched one by one: for the sanitizer."""
import numpy as np
import torch

from splatscope.kernels.renderer import Renderer
from splatscope.kernels.steps import changed, step
from tests.small_scenes import random_camera, random_scene

renderer, camera = Renderer(), random_camera(64, 48)
scene = renderer.upload(random_scene(camera, 200, seed=3))
for name in ("s00", "s01", "s06", "best"):
    policy = changed(step(name), {"launch.launch": "direct"})
    renderer.complete(lambda p=policy: renderer.forward(scene, camera, policy=p, training=True, wants_depth=True))
    renderer.backward(torch.ones((48, 64, 3), device="cuda"))
    torch.cuda.synchronize()
    print(name, "done", flush=True)
PROGRAM
if command -v compute-sanitizer >/dev/null; then
    : >"$out/sanitizer.log"
    for tool in memcheck racecheck synccheck; do
        part "$tool" 35 bash -c "set -o pipefail; PYTHONPATH='$root:$PYTHONPATH' compute-sanitizer --tool $tool \
            --error-exitcode 9 '$python' '$links/one_frame.py' 2>&1 | tee -a '$out/sanitizer.log' | tail -25"
    done
fi
exit $failed
