"""The training loop, readable top to bottom: `Trainer.run` is the only one there is.

It is a generator of events. The command line prints them; the window's engine thread pulls one, draws a
picture, pulls the next. Between two events the state is whole, so pausing is not pulling and stopping is
closing the generator. Read `steps/host.py` for what a step does to the splats, `strategies/base.py` for what happens
between two, `files/checkpoint.py` for how a run goes on later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from splatscope.assets.capture import Capture, PointCloud
from splatscope.kernels.backend import Backend
from splatscope.kernels.constants import SH_COEFFICIENTS
from splatscope.kernels.errors import InputError, NoRoomError
from splatscope.kernels.policy import Policy
from splatscope.kernels.types import Gaussians, RenderSettings
from splatscope.training import events, metrics
from splatscope.training.config import TrainConfig, config_from_dict, config_to_dict
from splatscope.training.data.dataset import Dataset, Photograph
from splatscope.training.data.initial import initial_points, splats_from_points
from splatscope.training.data.sizes import ResolutionSchedule
from splatscope.training.errors import NotFiniteError
from splatscope.training.files import output
from splatscope.training.files.beginning import Beginning, other_views
from splatscope.training.files.checkpoint import Checkpoint
from splatscope.training.files.folder import newest_iteration, only_writer
from splatscope.training.files.moved_cameras import moved_cameras
from splatscope.training.files.saving import RunFiles, Snapshot
from splatscope.training.forecast import forecast
from splatscope.training.scores.scorer import Scores
from splatscope.training.splats import rows as ops
from splatscope.training.splats.rows import SplatState, SplatTensors
from splatscope.training.splats.visibility_check import none_in_sight
from splatscope.training.steps.exposure import Exposures
from splatscope.training.steps.host import HostStep
from splatscope.training.stopwatch import Activity, Stopwatch, process_seconds
from splatscope.training.strategies.empty_refine_error import no_splats_left
from splatscope.training.strategies.factory import cannot_grow, make_strategy

if TYPE_CHECKING:
    from splatscope.training.steps.device import DeviceStep


class Trainer:
    """One run: its splats, and the generator that improves them."""

    def __init__(
        self, capture: Capture, config: TrainConfig, backend: Backend, out_dir: Path, begin: Beginning | None = None
    ) -> None:
        """Places the first splats, or those of `begin`; reads no photograph and writes nothing yet."""
        config.check()
        self.capture = capture
        self.config = config
        self.backend = backend
        self.out_dir = out_dir
        self.dataset = Dataset(capture, config.data)
        self.iteration = 0
        self._begin = begin = None if begin is None else begin.usable(config.sh_degree)
        known = begin.newest if begin is not None and begin.is_of(out_dir) else newest_iteration(out_dir)
        self._moved = () if begin is None else moved_cameras(begin.path, capture)  # before its cameras are written anew
        self._known = known  # checkpoints of the folder up to this iteration are no news
        self._points: PointCloud | None = None  # that the first splats were placed on
        self._prepared = False
        self._rng = np.random.default_rng(config.seed)  # first splats, order of views, backgrounds
        self._grows = True  # until there is no memory for more splats
        self._scores_asked = False  # before the next step
        self._settled = 0  # iteration after which density control has done its part
        self._moments_since = 0  # iteration after which Adam's moments were zero
        self._expected: list[Photograph] = []  # training views that steps have been told of
        self._epoch: list[int] = []  # training views still to come in this epoch, last first
        self._scores = Scores(config.plateau, config.policy)
        self._watch = Stopwatch()
        self._losses: list[float] = []  # of every iteration of this run, those before a resume included
        self._files = RunFiles(capture, config, out_dir)
        self._saving_shown = 0.0  # seconds of saving that steps have been told of
        extent = self.dataset.extent
        with self._watch.on("preparing"):
            self._state = self._first_state(extent)
        views = len(self.dataset.training_views)
        self._exposures = Exposures(config.exposure, config.rates, views, config.iterations)
        with self._watch.on("preparing"):
            self._stepper = self._make_step(extent)
        self._state = self._stepper.adopt(self._state, None)
        self._random = torch.Generator(self._state.raw.means.device)  # the strategy's
        self._random.manual_seed(config.seed)
        white = self.dataset.background == (1.0, 1.0, 1.0)
        self._strategy = make_strategy(config, self._state.count, extent, white)
        self._remark = "" if begin is None or begin.checkpoint is None else self._restore(begin.checkpoint)

    @property
    def gaussians(self) -> Gaussians:
        """The splats as they are: views on the live tensors, valid until the next event."""
        return self._stepper.gaussians(self._state)

    @property
    def sh_degree(self) -> int:
        """The degree trained by now; the splats have just its rows."""
        return SH_COEFFICIENTS[self._state.sh_rows]

    @property
    def sh_dtype(self) -> str:
        """As which the harmonics are kept (kernels/cuda/step/harmonics.py)."""
        return self._stepper.sh_dtype

    @property
    def pairs(self) -> int:
        """(splat, tile) pairs that the heaviest view so far has listed, about; 0 where that is not known."""
        return self._stepper.pairs

    @property
    def settings(self) -> RenderSettings:
        """What the run renders with."""
        return RenderSettings(self.dataset.background, self.sh_degree)

    @property
    def history(self) -> tuple[list[float], list[events.Evaluated]]:
        """The loss of each iteration so far, the newest last, and all scorings."""
        views = len(self.dataset.held_out_views) or self.config.data.training_views_tested
        rows = [(row["iteration"], row["psnr"], row["ssim"]) for row in self._scores.table]
        return self._losses, [events.Evaluated(*row, self.dataset.label, views) for row in rows]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """All scorings so far, as metrics.json has them."""
        return list(self._scores.table)

    @property
    def seconds(self) -> dict[Activity, float]:
        """Seconds that the run has spent on each activity, those before it was resumed included."""
        return dict(self._watch.seconds)

    @property
    def divisor(self) -> int:
        """By what the sides of photographs are divided in the next step, once they are read."""
        return self._resolution.divisor(self.iteration + 1) if self._prepared else 1

    def ask_for_scores(self) -> None:
        """Has `run` score the splats before its next step, also after the last one. The run ends as it would have."""
        self._scores_asked = True

    def extend(self, iterations: int) -> None:
        """Makes the run longer, as `--resume` with more iterations does: its schedules keep their constants. Raises
        InputError if its settings cannot be written."""
        config = replace(self.config, iterations=iterations)
        config.check()
        if self._prepared:
            output.write_start(self.out_dir, self.capture, config, None)
        self.config = self._files.config = config
        self._exposures.iterations = iterations

    def use(self, policy: Policy) -> tuple[str, ...]:
        """Later steps run with these toggles, as far as they leave the outcome alone. Returns stages yet to compile."""
        return self._stepper.use(policy)

    def run(self) -> Iterator[events.Event]:
        """Prepares, then steps, scores and saves until the last iteration. After a StandstillError it may be called
        again: it goes on from the last good state. Raises InputError while another run writes to its folder."""
        with only_writer(self.out_dir) as self._files.lock:
            yield from self._run()

    def _run(self) -> Iterator[events.Event]:
        watch, first = self._watch, True
        if not self._prepared:
            yield from self._prepare()
        last, failed = self.iteration >= self.config.iterations, False
        yield from self._score_if_asked()
        while not last:
            # The first step compiles what is missing.
            yield from watch.timed("preparing" if first else "training", self._step())
            first, last = False, self.iteration >= self.config.iterations
            scored = last or self._due(self.config.test_iterations, self.config.test_interval)
            if scored:
                yield from self._score()
                plateau = None if last else self._scores.plateau()
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
                yield from self._report()
            if not last:
                yield from self._score_if_asked()
        if not failed:  # which was said
            yield from self._report(last=True)
        yield events.Finished(self.iteration)

    def wait_for_files(self) -> None:
        """Returns once everything that is due is on disk, or is known not to be."""
        self._files.wait()

    def save(self) -> Path:
        """Writes the splats of this iteration, with rows up to the run's full degree, the scores so far and a
        checkpoint, all before it returns the path of the splats. Raises NotSavedError if one cannot be written."""
        self.wait_for_files()
        return self._files.write(self.snapshot(), self._metrics())

    def snapshot(self) -> Checkpoint:
        """A copy, on the host, of everything the run consists of, after this iteration."""
        self.settle()
        return self._snapshot(is_held=False).checkpoint()

    def _snapshot(self, is_held: bool) -> Snapshot:
        """The same where no step is in flight; `is_held` on the GPU for now, where there is room."""
        state = self._state
        parts: dict[str, Any] = {"strategy": self._strategy.statistics(), "exposure": self._exposures.state()}
        for name in ("raw", "first", "second"):
            tensors = getattr(state, name)
            parts[name] = {f.name: getattr(tensors, f.name) for f in fields(SplatTensors)}
        tensors = {f"{part}.{name}": tensor for part, group in parts.items() for name, tensor in group.items()}
        info = {
            "iteration": self.iteration,
            "settings": config_to_dict(self.config),
            "source": os.path.realpath(self.capture.path),
            "offset": list(self.capture.offset),
            "views": [view.name for view in self.dataset.training_views],
            "settled": self._settled,
            "moments_since": self._moments_since,
            "random": self._rng.bit_generator.state,
            "scores": list(self._scores.table),
            "seconds": self.seconds,
        }
        epoch = torch.tensor(self._epoch, dtype=torch.int64)
        others = {"epoch": epoch, "losses": list(self._losses), "random": self._random.get_state()}
        with ops.one_thread():
            return Snapshot(tensors, others, info, is_held)

    def _make_step(self, extent: float) -> HostStep | DeviceStep:
        """Steps on the GPU where the backend draws there."""
        used = self._exposures if self.config.exposure.enabled else None
        if self.backend.name != "cuda":
            return HostStep(self.backend, self.config, extent, used)
        from splatscope.training.steps.device import DeviceStep

        return DeviceStep(self.backend, self.config, extent, self._state, used)

    # How it begins ------------------------------------------------------------------------------------------------

    def _first_state(self, extent: float) -> SplatState:
        """The splats of a checkpoint or file as they are, else those placed on points."""
        begin = self._begin
        if begin is not None:
            if begin.splats is not None:
                self.iteration = self._settled = self._moments_since = begin.iteration
            return begin.state(self.capture.offset)
        cameras = [view.camera for view in self.dataset.training_views]
        on_cpu = self.backend.name != "cuda"
        initial = self.config.initial
        self._points = initial_points(self.capture, cameras, extent, initial, on_cpu, self._rng)
        return ops.from_gaussians(splats_from_points(self._points, extent, initial))

    def _restore(self, checkpoint: Checkpoint) -> str:
        """Takes everything but the splats from a checkpoint. Returns what could not be taken, in one sentence."""
        info = checkpoint.info
        self.iteration = checkpoint.iteration
        self._settled = info["settled"]
        self._moments_since = info["moments_since"]
        self._watch.seconds.update(info["seconds"])
        self._saving_shown = self._watch.seconds["saving"]
        self._scores.table[:] = info["scores"]
        self._losses = checkpoint.tensors["losses"].tolist()
        lost = [f"it is from before its {name} was kept" for name in checkpoint.lacks]
        if "random" not in checkpoint.lacks and not checkpoint.set_random(self._rng, self._random):
            lost.append("random numbers are drawn on another device")
        stored = config_from_dict(info["settings"])
        if (stored.strategy, stored.densify.enabled) != (self.config.strategy, self.config.densify.enabled):
            lost.append("another strategy begins with fresh statistics")
        elif (statistics := checkpoint.group_like("strategy", self._strategy.statistics())) is not None:
            self._strategy.restore(statistics)
            self._stepper.resume(self._strategy)
        else:
            lost.append("statistics of its strategy begin anew")
        if info["views"] == [view.name for view in self.dataset.training_views]:
            self._epoch = checkpoint.tensors["epoch"].tolist()
            exposures = checkpoint.group_like("exposure", self._exposures.state())
            if exposures is not None:
                self._exposures.restore(exposures)
            elif self.config.exposure.enabled:
                lost.append("exposures begin anew")
        elif "views" not in checkpoint.lacks:
            lost.append(other_views(info["views"], self.dataset))
        return f"Not a mere continuation: {'; '.join(lost)}." if lost else ""

    def _prepare(self) -> Iterator[events.Event]:
        set_aside = self._files.begin(self._points, self.iteration, self._known)
        for done, total in self._watch.timed("loading", self.dataset.load()):
            yield events.Loading(done, total)
        start = time.perf_counter()
        photographs = self.dataset.training
        self._epoch = [index for index in self._epoch if index < len(photographs)]  # some may be damaged since
        self._resolution = ResolutionSchedule(self.config.resolution, [view.pixels for view in photographs])
        self._strategy.aim(photographs, self.dataset.background)
        self._photographs(self.iteration + 1)  # on their way to a GPU while kernels are compiled
        self.backend.warm_up(training=True)
        self._watch.seconds["preparing"] += time.perf_counter() - start
        first = photographs[0].camera
        odd = *cannot_grow(self._strategy, self._state.count), *none_in_sight(self._state.raw, photographs)
        yield events.Prepared(
            training_views=len(self.dataset.training),
            held_out_views=len(self.dataset.held_out_views),
            width=first.width,
            height=first.height,
            count=self._state.count,
            extent=self.dataset.extent,
            background=self.dataset.background,
            label=self.dataset.label,
            warnings=(*self.capture.warnings, *self.dataset.warnings, *self._moved, *odd),
            masks=self.dataset.masked,
        )
        if (begin := self._begin) is not None:
            remark = begin.remark(self._remark, self.config, set_aside)
            yield events.Resumed(self.iteration, begin.path, remark)
        self._prepared = True
        if self.backend.name != "cuda":
            settings, done = self.settings, self.iteration
            yield forecast(self.backend, self.gaussians, self.dataset, settings, self.config, done)

    # Steps --------------------------------------------------------------------------------------------------------

    def _step(self) -> Iterator[events.Event]:
        """One iteration. What density control owes to the step before comes first, so that scores and saved
        files never catch splats whose opacities have just been lowered."""
        start, stepped = time.perf_counter(), None
        with ops.one_thread():
            densified = self._density_controlled()
            densify_ms = 1e3 * (time.perf_counter() - start)
            if not densified:
                stepped = self._descend(densify_ms)
        if densified:
            yield densified
            with ops.one_thread():
                stepped = self._descend(densify_ms)
        if stepped is not None:
            yield stepped

    def _density_controlled(self) -> events.Densified | events.GrowthStopped | None:
        """As `_control_density`; where no memory is left, splats become no more from then on, which is said once."""
        try:
            return self._control_density()
        except (NoRoomError, torch.OutOfMemoryError) as error:
            self._state = self._stepper.adopt(self._state, self._strategy)
            self._strategy.stop_growing(self._state.count)
            self._settled = self.iteration
            if self._grows:
                self._grows = False
                return events.GrowthStopped(self.iteration, self._state.count, str(error).partition("\n")[0])
            return None

    def _control_density(self) -> events.Densified | None:
        """What is due between iteration `self.iteration` and the next; nothing the second time it is called."""
        if self._settled == self.iteration > 0:
            return None
        degree = min((self.iteration + 1) // self.config.sh_interval, self.config.sh_degree)
        if due := self._strategy.due(self.iteration):
            self.settle()
        statistics = self._strategy.statistics() if due else {}
        state, densified = self._strategy.after_step(self._state, self.iteration, self._random)
        if state.count == 0:  # as if it had not been tried
            self._strategy.restore(statistics)
            raise no_splats_left(self._state.raw, self.config, self.iteration, self.dataset.extent)
        state = ops.raise_sh_degree(state, degree)
        if densified and self.config.reorder_share < 1:
            state = ops.in_order(state, self.config.reorder_share)
        before, now = (self._resolution.divisor(iteration) for iteration in (self.iteration, self.iteration + 1))
        if before != now:  # how strongly splats are pulled depends on the size of the picture
            self.settle()
            self._strategy.forget(state.count)
        if state is not self._state or before != now:
            self._state = self._stepper.adopt(state, self._strategy)
        self._settled = self.iteration
        return densified

    def _descend(self, densify_ms: float) -> events.Stepped:
        """A step on the next view; the splats stay as they are if a number in it is not finite."""
        iteration = self.iteration + 1
        settings = self.settings
        if self.config.data.random_background:
            red, green, blue = self._rng.random(3).tolist()
            settings = replace(settings, background=(red, green, blue))
        index = self._next_view()
        view = self._photographs(iteration)[index]
        since, strategy = self._moments_since, self._strategy
        try:
            taken = self._stepper.take(self._state, view, index, settings, iteration, since, strategy)
        except NotFiniteError as error:
            self.iteration = error.reached
            raise
        self.iteration = iteration
        del self._losses[iteration - 1 - self._moments_since :]  # of steps that had to be taken back
        self._note_loss(iteration, taken.loss)  # on a GPU that of an earlier step, until this one's is known
        self._note_losses()
        saved = self._watch.seconds["saving"]
        saving_ms, self._saving_shown = 1e3 * (saved - self._saving_shown), saved
        stages = {"saving": saving_ms, "densify": densify_ms, **taken.stage_ms}
        return events.Stepped(iteration, taken.loss, self._state.count, stages)

    def _photographs(self, iteration: int) -> list[Photograph]:
        """The training views at the size of that iteration; steps are told when there are others."""
        views = self.dataset.training_at(self._resolution.divisor(iteration))
        if views is not self._expected:
            self._expected = views
            self._stepper.expect(views)
            self.dataset.reduce_ahead(self._resolution.next_divisor(iteration))
        return views

    def settle(self) -> None:
        """Waits until all steps taken are over. Raises NotFiniteError after going back to the step it is about."""
        try:
            self._stepper.settle(self._strategy)
        except NotFiniteError as error:
            self.iteration = error.reached
            raise
        self._note_losses()

    def _note_losses(self) -> None:
        for iteration, loss in self._stepper.losses():
            self._note_loss(iteration, loss)

    def _note_loss(self, iteration: int, loss: float) -> None:
        """Also of iterations before it that nobody told of: those that were on their way when an error came."""
        place = iteration - 1 - self._moments_since
        self._losses += [loss] * (place + 1 - len(self._losses))
        self._losses[place] = loss

    def _next_view(self) -> int:
        """Indices of training views in random order, each once an epoch."""
        if not self._epoch:
            self._epoch = self._rng.permutation(len(self.dataset.training)).tolist()
        return self._epoch.pop()

    # Scores and files ---------------------------------------------------------------------------------------------

    def _score(self, asked: bool = False) -> Iterator[events.Event]:
        self._scores_asked = False
        with self._watch.on("training"):
            self.settle()
        used = self._exposures if self.config.exposure.enabled else None
        now = self.iteration, self._watch.seconds["training"], asked
        scoring = self._scores.measure(self.backend, self.gaussians, self.dataset, self.settings, used, *now)
        yield from self._watch.timed("scoring", scoring)

    def _score_if_asked(self) -> Iterator[events.Event]:
        """Ends with the scores, so that whoever asked need not take the step that follows; they are on disk by then."""
        if self._scores_asked:
            for event in self._score(asked=True):
                if isinstance(event, events.Evaluated):
                    yield from self._report()
                yield event

    def _report(self, last: bool = False) -> Iterator[events.Event]:
        """Writes metrics.json."""
        try:
            self._files.write_scores(self._metrics())
        except InputError as error:
            yield events.SaveFailed(self.iteration, ("scores",), str(error), last)

    def _due(self, iterations: tuple[int, ...], interval: int = 0) -> bool:
        return (interval > 0 and self.iteration % interval == 0) or self.iteration in iterations

    def _save_if_due(self, last: bool, scored: bool) -> bool:
        """Has the state written in the background if that is due, new scores with it. False if nothing is."""
        due = self._files.due(self.iteration, last)
        if not due:
            return False
        # Steps in flight may yet be refused, so which iteration this is shows when they are over. Until then the GPU
        # is busy with them; it waits for nothing but the launches of the copy.
        with self._watch.on("training"):
            self.settle()
        with self._watch.on("saving"):
            scores = self._metrics() if scored else None
            # At the end no step is to come, so memory for a copy beside the originals would be had for nothing.
            self._files.save(due, lambda: self._snapshot(is_held=not last), scores)
        return True

    def _metrics(self) -> dict[str, Any]:
        return {
            "label": self.dataset.label,
            "protocol": metrics.PROTOCOL,
            "views": [view.name for view in self.dataset.tested],
            "iteration": self.iteration,
            "splats": self._state.count,
            "training_seconds": round(self._watch.seconds["training"], 3),
            "seconds": {name: round(seconds, 3) for name, seconds in self._watch.seconds.items()},
            "process_seconds": round(process_seconds(), 3),  # since it was started; the end has the splats on disk
            "scores": list(self._scores.table),
        }
