"""Describes a training run in words and figures, for the panel and the status bar. No GUI."""

from __future__ import annotations

from splatscope.kernels.wording import byte_size
from splatscope.viewer.messages.run import MemoryUse, Phase, TrainingStatus
from splatscope.viewer.messages.view import EngineStatus
from splatscope.viewer.palette import ACCENT, STATE_COLORS, Color


def state_word(status: EngineStatus, nothing: str) -> tuple[str, Color]:
    """Returns the state of the run, or of the engine before there is a run, and its colour; `nothing` if neither is
    busy."""
    training = status.training
    if training.state == "none" and status.search is not None:
        return "finding cameras", ACCENT
    if status.busy and (training.state == "ready" or status.scene is None):
        return status.busy.partition(" ")[0].rstrip("…"), ACCENT  # its first word names the activity
    if training.doing:
        return training.doing, ACCENT
    return nothing if training.state == "none" else training.state, STATE_COLORS[training.state]


def progress_words(training: TrainingStatus) -> tuple[str, ...]:
    """Returns "412 / 7,000, to pause at 650", and shorter wordings for less room."""
    text = f"{training.iteration:,} / {training.iterations:,}"
    shorter = text, f"{training.iteration:,}"
    return (f"{text}, to pause at {training.until:,}", *shorter) if training.until else shorter


def score_label(training: TrainingStatus) -> str:
    """Returns which views were scored: "Held-out" or "Training"."""
    return "Score" if training.psnr is None else training.psnr_label.partition(" ")[0].capitalize()


def score_words(training: TrainingStatus) -> str:
    """Returns "29.89 dB, SSIM 0.9012 at 7,000"; empty before the first score."""
    if training.psnr is None or training.ssim is None:
        return ""
    return f"{training.psnr:.2f} dB, SSIM {training.ssim:.4f} at {training.scored_at:,}"


def phase_words(phase: Phase, iteration: int) -> str:
    """Returns two lines: what the newest refine did, and when the next one comes."""
    done, news, plan = phase.refined, "Not refined yet", "No refine is planned"
    if done is not None:
        kinds = {"added": done.added, "split": done.split, "pruned": done.pruned, "moved": done.moved}
        did = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items() if number)
        news = f"Refined at {done.iteration:,}: {did or 'nothing to do'}"
    if phase.next_refine:
        plan = f"Next refine at {phase.next_refine:,}, the last at {phase.last_refine:,}"
    elif phase.last_refine and iteration:
        plan = f"No refine after {phase.last_refine:,}"
    return f"{news}\n{plan}"


def size_words(phase: Phase) -> str:
    """Returns the size of the photographs in training, "320 x 240, 1/2 of full size"; empty before they are read."""
    size = f"{phase.width} x {phase.height}"
    return "" if not phase.width else size if phase.divisor == 1 else f"{size}, 1/{phase.divisor} of full size"


def memory_words(use: MemoryUse) -> tuple[str, ...]:
    """Returns "Memory 2.2 of 23.5 GiB; run needs up to 40 MiB" (used, total, forecast), and shorter wordings for less
    room."""
    used, total = byte_size(use.used), byte_size(use.total)
    if used.endswith("GiB") and total.endswith("GiB"):
        used = used.removesuffix(" GiB")
    in_use = f"{used} of {total}"
    needs = f"run needs {'' if use.ends else 'up to '}{byte_size(use.needed)}"
    return f"{use.name} {in_use}; {needs}", f"{use.name} {in_use}", in_use, f"{use.used / use.total:.0%}"


def view_price(training: TrainingStatus) -> str:
    """Returns the speed that pictures cost the run: "3.1 of 24.0 it/s"."""
    rate, share = training.iterations_per_second, training.view_cost
    if not rate or not 0.0 < share < 1.0:
        return ""
    alone = rate / (1.0 - share)
    return f"{alone - rate:.1f} of {alone:.1f} it/s" if alone >= 10 else f"{share:.0%} of {speed(alone)}"


def speed(iterations_per_second: float) -> str:
    """Returns it/s, or s/it for a run slower than one iteration per second."""
    if iterations_per_second >= 1.0:
        return f"{iterations_per_second:.1f} it/s"
    return f"{1.0 / iterations_per_second:.1f} s/it"
