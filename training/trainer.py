"""Trains one set of splats. `Trainer.run` is the only training loop there is; read it first.

It is a generator of events. The command line prints them; the window's engine thread pulls one, draws a picture and
pulls the next. Between two events the state is whole, so pausing is not pulling and stopping is closing the generator.

Read next:
- `run_state.py` for everything that a run consists of;
- `steps/__init__.py` for the files that one step passes;
- `steps/protocol.py` for a step on the splats, `growth.py` for what happens between two;
- `files/run_record.py` for how a run is saved and resumed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splatscope.assets.capture import Capture
from splatscope.kernels.backend import Backend
from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.errors import InputError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import events
from splatscope.training.config import TrainConfig
from splatscope.training.data.dataset import Dataset
from splatscope.training.data.step_views import StepViews
from splatscope.training.files import output
from splatscope.training.files.beginning import Beginning, Start, first_splats
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.files.folder import only_writer
from splatscope.training.files.run_record import metrics_json, restore, snapshot
from splatscope.training.files.saving import RunFiles, Snapshot
from splatscope.training.forecast import forecast
from splatscope.training.growth import Growth
from splatscope.training.run_state import RunState
from splatscope.training.scores.scorer import Scores
from splatscope.training.splats.rows import one_thread
from splatscope.training.splats.visibility_check import none_in_sight
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.factory import make_stepper
from splatscope.training.steps.protocol import StepInput
from splatscope.training.stopwatch import Activity, Stopwatch
from splatscope.training.strategies.factory import cannot_grow, make_strategy


class Trainer:
    """Holds one run: its splats, and the generator that improves them."""

    def __init__(
        self, capture: Capture, config: TrainConfig, backend: Backend, out_dir: Path, begin: Beginning | None = None
    ) -> None:
        """Places the first splats, or those of `begin`. Reads no photograph and writes nothing yet."""
        config.check()
        self.capture, self.config, self.backend, self.out_dir = capture, config, backend, out_dir
        self.dataset = dataset = Dataset(capture, config.data)
        self._start = start = Start.of(begin, capture, config, out_dir)
        self._files = RunFiles(capture, config, out_dir)
        rng, watch = np.random.default_rng(config.seed), Stopwatch()
        with watch.on("preparing"):
            fewer = not backend.trains_on_device
            splats, self._points = first_splats(start.begin, capture, dataset, config, fewer, rng)
        exposures = Exposures(config.exposure, config.rates, len(dataset.training_views), config.iterations)
        self._exposed = exposures if config.exposure.enabled else None
        with watch.on("preparing"):
            self.stepper = make_stepper(backend, config, dataset.extent, splats, self._exposed)
        splats = self.stepper.adopt(splats, None)
        random = torch.Generator(splats.raw.means.device)
        random.manual_seed(config.seed)
        white = dataset.background == (1.0, 1.0, 1.0)
        strategy = make_strategy(config, splats.count, dataset.extent, white)
        scores = Scores(config.plateau, config.policy)
        begun = start.iteration
        self.state = RunState(splats, strategy, exposures, scores, watch, rng, random, begun, begun, begun)
        self._growth = Growth(self.state, self.stepper, config, dataset.extent)
        self._views: StepViews | None = None  # once photographs are read and the run is prepared
        checkpoint = start.checkpoint
        self._remark = "" if checkpoint is None else restore(self.state, self.stepper, checkpoint, dataset, config)

    # What others see of it ----------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Returns the iteration that was taken last."""
        return self.state.iteration

    @property
    def gaussians(self) -> Gaussians:
        """Returns the splats as they are: views on the live tensors, valid until the next event."""
        return self.stepper.gaussians(self.state.splats)

    @property
    def sh_degree(self) -> int:
        """Returns the degree trained by now, which is the highest that the splats have rows for."""
        return SH_COEFFICIENTS[self.state.splats.sh_rows]

    @property
    def sh_dtype(self) -> str:
        """Returns the type in which harmonics are kept (kernels/cuda/step/harmonics.py)."""
        return self.stepper.sh_dtype

    @property
    def pairs(self) -> int:
        """Returns about the most (splat, tile) pairs that a view has listed so far; 0 if not known."""
        return self.stepper.pairs

    @property
    def settings(self) -> RenderSettings:
        """Returns the settings that pictures of the run are rendered with."""
        return RenderSettings(self.dataset.background, self.sh_degree)

    @property
    def history(self) -> tuple[list[float], list[events.Evaluated]]:
        """Returns the loss of each iteration so far, the newest last, and all scorings."""
        views = len(self.dataset.held_out_views) or self.config.data.training_views_tested
        rows = [(row["iteration"], row["psnr"], row["ssim"]) for row in self.state.scores.table]
        return self.state.losses, [events.Evaluated(*row, self.dataset.label, views) for row in rows]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Returns all scorings so far, as metrics.json has them."""
        return list(self.state.scores.table)

    @property
    def seconds(self) -> dict[Activity, float]:
        """Returns the seconds that the run has spent on each activity, including those before it was resumed."""
        return dict(self.state.watch.seconds)

    @property
    def divisor(self) -> int:
        """Returns the number that the next step divides the sides of photographs by; 1 until they are read."""
        return 1 if self._views is None else self._views.divisor(self.iteration + 1)

    def ask_for_scores(self) -> None:
        """Has `run` score the splats before its next step, or after the last one. The run's result does not change."""
        self.state.scores.are_asked = True

    def extend(self, iterations: int) -> None:
        """Makes the run longer, as `--resume` with more iterations does: its schedules keep their constants. Raises
        InputError if its settings cannot be written."""
        config = replace(self.config, iterations=iterations)
        config.check()
        if self._views is not None:
            output.write_start(self.out_dir, self.capture, config, None)
        self.config = self._files.config = config
        self.state.exposures.iterations = iterations

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Has later steps run with these toggles, as far as they leave the outcome alone. Returns the stages that wait
        for the compiler."""
        return self.stepper.use(policy)

    # The run ------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[events.Event]:
        """Prepares, then steps, scores and saves until the last iteration. After a StandstillError it may be called
        again and continues from the last good state. Raises InputError while another run writes to its folder."""
        with only_writer(self.out_dir) as self._files.lock:
            yield from self._run()

    def _run(self) -> Iterator[events.Event]:
        state, watch = self.state, self.state.watch
        views = self._views or (yield from self._prepare())
        last, failed = state.iteration >= self.config.iterations, False
        yield from self._score_if_asked()
        activity: Activity = "preparing"  # the first step compiles what is missing
        while not last:
            yield from watch.timed(activity, self._step(views))
            activity, last = "training", state.iteration >= self.config.iterations
            scored = last or self._is_score_due()
            if scored:
                yield from self._score()
                plateau = None if last else state.scores.plateau()
                if plateau is not None:
                    last = True
                    yield plateau
            is_saved = self._save_if_due(last, scored)
            written: list[events.Saved | events.SaveFailed] = []
            if last or self._files.are_awaited:
                with watch.on("saving"):
                    written = self._files.finished(wait=last)
                yield from written
            failed = any(isinstance(event, events.SaveFailed) for event in written)
            if scored and not is_saved:
                yield from self._write_scores()
            if not last:
                yield from self._score_if_asked()
        if not failed:  # else an event has reported it
            yield from self._write_scores(last=True)
        yield events.Finished(state.iteration)

    def _prepare(self) -> Generator[events.Event, None, StepViews]:
        """Makes the folder ready, reads the photographs, compiles, and reports how the run begins."""
        state, dataset, begin = self.state, self.dataset, self._start.begin
        set_aside = self._files.begin(self._points, state.iteration, self._start.known)
        for done, total in state.watch.timed("loading", dataset.load()):
            yield events.Loading(done, total)
        with state.watch.on("preparing"):
            photographs = dataset.training
            state.epoch = [index for index in state.epoch if index < len(photographs)]  # some may be damaged since
            views = StepViews(dataset, self.config.resolution, self.stepper.expect)
            state.strategy.aim(photographs, dataset.background)
            views.at(state.iteration + 1)  # on their way to a GPU while kernels are compiled
            self.backend.warm_up(training=True)
        odd = *cannot_grow(state.strategy, state.splats.count), *none_in_sight(state.splats.raw, photographs)
        yield events.Prepared(
            training_views=len(photographs),
            held_out_views=len(dataset.held_out_views),
            width=photographs[0].camera.width,
            height=photographs[0].camera.height,
            count=state.splats.count,
            extent=dataset.extent,
            background=dataset.background,
            label=dataset.label,
            warnings=(*self.capture.warnings, *dataset.warnings, *self._start.moved, *odd),
            masks=dataset.masked,
        )
        if begin is not None:
            yield events.Resumed(state.iteration, begin.path, begin.remark(self._remark, self.config, set_aside))
        self._views = views
        if not self.backend.trains_on_device:
            yield forecast(self.backend, self.gaussians, dataset, self.settings, self.config, state.iteration)
        return views

    def _step(self, views: StepViews) -> Iterator[events.Event]:
        """Takes one iteration: changes the splats, then takes one step on one photograph.

        The change belongs to the iteration before. It is made here so that scores and saved files never catch splats
        whose opacities have just been lowered. If a number in the step is not finite, raises NotFiniteError.
        """
        state, start = self.state, time.perf_counter()
        with one_thread():
            changed = self._growth.between_steps(views.is_resized_after(state.iteration))
        densify_ms = 1e3 * (time.perf_counter() - start)
        if changed is not None:
            yield changed
        with one_thread(), state.going_back():
            settings, iteration = self.settings, state.iteration + 1
            if self.config.data.random_background:
                red, green, blue = state.rng.random(3).tolist()
                settings = replace(settings, background=(red, green, blue))
            index = state.next_view(len(self.dataset.training))
            step = StepInput(iteration, state.moments_since, views.at(iteration)[index], index, settings)
            taken = self.stepper.take(state.splats, step, state.strategy)
            # On a GPU the loss is that of an earlier step until this step's own is known.
            state.begin_iteration(iteration, taken.loss)
            state.note_losses(self.stepper.losses())
        stages = {"saving": 1e3 * state.watch.added("saving"), "densify": densify_ms, **taken.stage_ms}
        yield events.Stepped(iteration, taken.loss, state.splats.count, stages)

    def settle(self) -> None:
        """Waits until all steps taken are over. Raises NotFiniteError after going back to the iteration it names."""
        self.state.settle(self.stepper)

    # Scores and files ---------------------------------------------------------------------------------------------

    def _is_score_due(self) -> bool:
        c, iteration = self.config, self.iteration
        return (c.test_interval > 0 and iteration % c.test_interval == 0) or iteration in c.test_iterations

    def _score(self, asked: bool = False) -> Iterator[events.Event]:
        """Scores the splats of this iteration."""
        state = self.state
        state.scores.are_asked = False
        with state.watch.on("training"):
            self.settle()
        now = state.iteration, state.watch.seconds["training"], asked
        scoring = state.scores.measure(self.backend, self.gaussians, self.dataset, self.settings, self._exposed, *now)
        yield from state.watch.timed("scoring", scoring)

    def _score_if_asked(self) -> Iterator[events.Event]:
        """Scores if somebody asked. The scores come last and are on disk by then, so that whoever asked need not take
        the step that follows."""
        if self.state.scores.are_asked:
            for event in self._score(asked=True):
                if isinstance(event, events.Evaluated):
                    yield from self._write_scores()
                yield event

    def _write_scores(self, last: bool = False) -> Iterator[events.Event]:
        """Writes metrics.json, and reports if that failed."""
        try:
            self._files.write_scores(metrics_json(self.state, self.dataset))
        except InputError as error:
            yield events.SaveFailed(self.iteration, ("scores",), str(error), last)

    def _save_if_due(self, last: bool, scored: bool) -> bool:
        """Has the state written in the background if that is due, new scores with it. False if nothing is due."""
        state, due = self.state, self._files.due(self.iteration, last)
        if not due:
            return False
        # Steps in flight may yet be refused, so which iteration this is shows when they are over. Until then the GPU
        # is busy with them; it waits for nothing but the launches of the copy.
        with state.watch.on("training"):
            self.settle()
        with state.watch.on("saving"):
            scores = metrics_json(state, self.dataset) if scored else None
            # At the end no step is to come, so a second copy in the GPU's memory would be of no use.
            self._files.save(due, lambda: self._snapshot(is_held=not last), scores)
        return True

    def wait_for_files(self) -> None:
        """Returns once everything that is due is on disk, or is known not to be."""
        self._files.wait()

    def save(self) -> Path:
        """Writes the splats of this iteration, with rows up to the run's full degree, the scores so far and a
        checkpoint, all before it returns the path of the splats. Raises NotSavedError if one cannot be written."""
        self.wait_for_files()
        return self._files.write(self.snapshot(), metrics_json(self.state, self.dataset))

    def snapshot(self) -> Checkpoint:
        """Returns a copy, on the host, of everything the run consists of, after this iteration."""
        self.settle()
        return self._snapshot(is_held=False).checkpoint()

    def _snapshot(self, is_held: bool) -> Snapshot:
        return snapshot(self.state, self.capture, self.dataset, self.config, is_held)
