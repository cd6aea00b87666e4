"""Makes the steps that belong to a backend."""

from __future__ import annotations

from splatscope.kernels.backend import Backend
from splatscope.kernels.cuda.backend import CudaBackend
from splatscope.training.config import TrainConfig
from splatscope.training.splats.rows import SplatState
from splatscope.training.steps.device import DeviceStep
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.host import HostStep
from splatscope.training.steps.protocol import Stepper


def make_stepper(
    backend: Backend, config: TrainConfig, extent: float, state: SplatState, exposures: Exposures | None
) -> Stepper:
    """Makes steps on the device of the backend if it trains there, else on the host; `extent` is in world units."""
    if not backend.trains_on_device:
        return HostStep(backend, config, extent, exposures)
    assert isinstance(backend, CudaBackend), "the only backend that trains on its device"
    return DeviceStep(backend, config, extent, state, exposures)
