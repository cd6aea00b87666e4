"""Owns the model, the backend and the run in one thread, and answers the window.

One frame passes these Python files, from the camera that the window wants to pixels on the screen:

1. `viewer/state/session.py` makes a `ViewRequest` of camera, toggles and overlay, and posts it.
2. `app/engine/mailbox.py` keeps the newest request.
3. `app/engine/engine.py` checks whether a picture is due (`_draw_if_due`).
4. `app/engine/frame_queue.py` begins the picture on the backend, and finishes it: heatmap, photograph, cost.
5. `kernels/cuda/backend.py` uploads splats that are new and hands over the pass (on a CPU: `kernels/cpu/backend.py`).
6. `kernels/cuda/renderer.py` finds or makes the plan of the pass; `kernels/cuda/replay.py` replays it as a graph.
7. `kernels/cuda/plan/planner.py` plans the launches of all stages; the kernels are `kernels/cuda/source/*.cuh`.
8. `kernels/cuda/plan/operations.py` runs the plan's operations; `kernels/cuda/launch/launcher.py` launches each kernel.
9. `kernels/cuda/pictures.py` copies the picture to the host.
10. `viewer/window.py` has the session poll the picture in each frame of the window, and uploads it.
11. `viewer/drawing/viewport.py` and `viewer/drawing/textures.py` draw it.
"""
