"""Takes a training step, on the host or on the device.

One step passes these Python files:

1. `training/trainer.py` takes an iteration (`Trainer._step`).
2. `training/growth.py` changes the splats as the strategy decides, which most iterations leave out.
3. `training/data/step_views.py` gives the photograph at the size of this iteration.

On a CPU:

4. `training/steps/host.py` takes the whole step: picture, loss, gradients, Adam.
5. `kernels/cpu/backend.py` and `kernels/cpu/pipeline.py` run the kernels of the forward and the backward pass.
6. `training/splats/optimizer.py` takes Adam's step.

On a GPU:

4. `training/steps/device.py` makes the request, and notes the losses of earlier steps.
5. `kernels/cuda/training_step.py` queues the step; `_prepare` lists its launches in order.
6. `kernels/cuda/step/request.py` writes what changes from step to step.
7. `kernels/cuda/plan/planner.py` plans the launches of the forward and the backward pass.
8. `kernels/cuda/step/loss.py` and `kernels/cuda/step/adam.py` plan those of the loss and of Adam.
9. `kernels/cuda/replay.py` replays them as a graph, and `kernels/cuda/launch/launcher.py` launches each kernel.
"""
