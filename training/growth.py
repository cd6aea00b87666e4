"""Changes the splats between two steps, as the strategy decides, and ends growth where memory runs out.

Read `strategies/base.py` for what a strategy may do, and `splats/rows.py` for the row operations.
"""

from __future__ import annotations

import torch

from splatscope.kernels.errors import NoRoomError
from splatscope.training.config import TrainConfig
from splatscope.training.events import Densified, GrowthStopped
from splatscope.training.run_state import RunState
from splatscope.training.splats import rows as ops
from splatscope.training.steps.protocol import Stepper
from splatscope.training.strategies.empty_refine_error import no_splats_left


class Growth:
    """Controls the density of one run's splats."""

    def __init__(self, state: RunState, stepper: Stepper, config: TrainConfig, extent: float) -> None:
        self._state, self._stepper, self._config = state, stepper, config
        self._extent = extent  # world units
        self._has_room = True  # False once memory has run out

    def between_steps(self, is_resized: bool) -> Densified | GrowthStopped | None:
        """Does what is due between the state's iteration and the next; nothing the second time it is called.

        `is_resized`: the next step has photographs of another size. If memory runs out, ends growth for the rest of the
        run and reports it once. Raises NoSplatsLeftError instead of a refine that would remove every splat.
        """
        state = self._state
        if state.settled == state.iteration > 0:
            return None
        try:
            densified = self._control_density(is_resized)
        except (NoRoomError, torch.OutOfMemoryError) as error:
            state.splats = self._stepper.adopt(state.splats, state.strategy)
            state.strategy.stop_growing(state.splats.count)
            state.settled = state.iteration
            had_room, self._has_room = self._has_room, False
            reason = str(error).partition("\n")[0]
            return GrowthStopped(state.iteration, state.splats.count, reason) if had_room else None
        state.settled = state.iteration
        return densified

    def _control_density(self, is_resized: bool) -> Densified | None:
        """Has the strategy change the splats, then raises the degree of their harmonics and puts them in order."""
        state, strategy, iteration = self._state, self._state.strategy, self._state.iteration
        if due := strategy.due(iteration):
            state.settle(self._stepper)
        statistics = strategy.statistics() if due else {}
        splats, densified = strategy.after_step(state.splats, iteration, state.random)
        if splats.count == 0:  # as if the refine had not been tried
            strategy.restore(statistics)
            raise no_splats_left(state.splats.raw, self._config, iteration, self._extent)
        degree = min((iteration + 1) // self._config.sh_interval, self._config.sh_degree)
        splats = ops.raise_sh_degree(splats, degree)
        if densified and self._config.reorder_share < 1:
            splats = ops.in_order(splats, self._config.reorder_share)
        if is_resized:  # how strongly splats are pulled depends on the size of the picture
            state.settle(self._stepper)
            strategy.forget(splats.count)
        if splats is not state.splats or is_resized:
            state.splats = self._stepper.adopt(splats, strategy)
        return densified
