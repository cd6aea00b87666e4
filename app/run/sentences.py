"""Turns training events into sentences, the same ones for the terminal and for the window's log."""

from __future__ import annotations

from splatscope.kernels.wording import counted, duration
from splatscope.training import events


def sentence(event: events.Event) -> str | None:
    """Returns one line for people, or None for events that only move a progress bar."""
    match event:
        case events.Loading() if event.done == event.total:
            return (
                f"Read {counted(event.total, 'photograph')}; compiling kernels, or loading them if they are compiled…"
            )
        case events.Prepared():
            held_out = f", {event.held_out_views} held out" if event.held_out_views else ""
            return (
                f"{counted(event.training_views, 'view')} to train on{held_out}, {event.width}x{event.height}; "
                f"{counted(event.count, 'splat')} to begin with. {event.masks}"
            ).strip()
        case events.Forecast():
            text = f"Forecast: about {duration(event.seconds)} ({duration(event.step_ms / 1e3)} a step now)."
            return f"{text} {event.suggestion}".strip()
        case events.GrowthStopped():
            return (
                f"Iteration {event.iteration:,}: no memory for more than {counted(event.count, 'splat')}; training "
                f"continues with these. {event.reason}"
            )
        case events.Densified() if is_drastic(event):
            return (
                f"Iteration {event.iteration:,}: a refine removed {counted(event.pruned, 'splat')}, and "
                f"{counted(event.count, 'splat')} {'is' if event.count == 1 else 'are'} left: too faint or too large, "
                f"by this recipe. If the scene thins out, go back and compare its settings with the usual ones."
            )
        case events.Evaluated():
            return (
                f"Iteration {event.iteration:,}: {event.label} {event.psnr:.2f} dB, SSIM {event.ssim:.4f} "
                f"({counted(event.views, 'view')})"
            )
        case events.Saved():
            return f"Iteration {event.iteration:,}: saved {event.path}"
        case events.SaveFailed():
            what = " and ".join(event.what)
            then = "The run is over." if event.last else "Training continues."
            return f"Iteration {event.iteration:,}: {what} not saved. {event.reason} {then}"
        case events.Resumed():
            return f"Continuing from iteration {event.iteration:,} of {event.path}. {event.remark}".strip()
        case events.Plateaued():
            return (
                f"Iteration {event.iteration:,}: {counted(event.scorings, 'scoring')} in a row brought no gain over "
                f"{event.best:.2f} dB, so the run ends here."
            )
        case events.Finished():
            return f"Training finished at iteration {event.iteration:,}."
        case _:
            return None


def is_drastic(event: events.Event) -> bool:
    """Returns True for a refine that left less than a quarter of the splats."""
    return isinstance(event, events.Densified) and event.pruned > 3 * event.count


def back_label(iteration: int) -> str:
    """Returns the label for going back to a checkpoint, in window and terminal; 0 is the run's beginning."""
    return f"Go back to iteration {iteration:,}" if iteration else "Go back to the beginning"
