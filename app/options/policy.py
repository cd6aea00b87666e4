"""Makes a policy of --step and --toggle, for every subcommand that draws, trains or measures.

A command line means the same on every machine: values are checked against all toggles, whichever of them the backend
honours. Toggles that a value rules out are switched off, as after a click (`viewer/state/presets.py`). Nothing here
loads torch, a GUI or a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splatscope.kernels.errors import InputError
from splatscope.kernels.ladder import step as policy_of_step
from splatscope.kernels.policy import Filter, Policy, Toggle, toggle_table
from splatscope.kernels.primitive import Primitive
from splatscope.kernels.toggles import in_present_names
from splatscope.viewer.state.presets import DEFAULT, describe, preset_of, settle

OPTION = "--toggle"


@dataclass(frozen=True)
class PolicyChoice:
    """Holds what the command line asks for, and the policy that follows from it."""

    step: str = DEFAULT
    given: tuple[tuple[str, str], ...] = ()  # (stage.field, value) of each --toggle
    followed: tuple[str, ...] = ()  # toggles that had to be set with them, as "cmask = off"
    policy: Policy = Policy()

    @property
    def is_default(self) -> bool:
        """Returns True if nothing was asked for."""
        return self.step == DEFAULT and not self.given

    @property
    def keeps_filter(self) -> bool:
        """Returns True if the filter was asked for, so that it replaces the scene's own."""
        return any(key == "project.filter" for key, _ in self.given)

    @property
    def options(self) -> list[str]:
        """Returns the options of a command line that ask for the same."""
        words = ["--step", self.step] if self.step != DEFAULT else []
        return [*words, OPTION, *(f"{key}={value}" for key, value in self.given)] if self.given else words

    @property
    def row(self) -> str:
        """Returns the name in benchmark tables: "best, blend.compaction = off (also cmask = off)"."""
        also = f" (also {', '.join(self.followed)})" if self.followed else ""
        return ", ".join([self.step, *(f"{key} = {value}" for key, value in self.given)]) + also

    def for_scene(self, own_filter: Filter) -> Policy:
        """Returns the policy for splats trained with `own_filter`, with that filter unless another was asked for."""
        return self.policy if self.keeps_filter else self.policy.with_value("project", "filter", own_filter)

    def for_training(self, antialiasing: Filter = "plain") -> Policy:
        """Returns the policy for a run with this filter: the toggles that leave its outcome alone, and sh_dtype."""
        policy = self.policy
        for row in toggle_table("cuda"):
            if row.identity == "Q" and row.key != "project.sh_dtype":
                policy = policy.with_value(row.stage, row.name, row.default)
        return policy.with_value("project", "filter", antialiasing)

    def remarks(self, backend: str, primitive: Primitive = "3dgs") -> list[str]:
        """Returns a sentence for each difference between the command line and what this backend does with splats of
        this primitive."""
        listed = _listed_as(backend)
        names = {row.name.replace("_", " ") for row in toggle_table(listed)}
        followed = [words for words in self.followed if words.partition(" = ")[0] in names]
        said = [f"Also set: {', '.join(followed)}."] if followed else []
        same = preset_of(policy_of_step(self.step), listed)
        if same not in (None, self.step):
            said.append(f"To the {backend} backend, step {self.step} is the same as {same}.")
        honoured = [row.key for row in toggle_table(listed)]
        if ignored := [key for key, _ in self.given if key not in honoured]:
            said.append(
                f"The {backend} backend does not honour {_and(ignored)} and continues without; "
                f"it honours {_and(honoured)}."
            )
        keys = [key for key, _ in self.given]
        said += [idle for row in toggle_table(listed) if row.key in keys and (idle := row.idle(primitive))]
        return said

    def training_remarks(
        self, backend: str, antialiasing: Filter = "plain", primitive: Primitive = "3dgs"
    ) -> list[str]:
        """Returns the remarks for a training run with this filter and primitive."""
        taken, asked = self.for_training(antialiasing), self.for_scene(antialiasing)
        left = [
            f"{row.key} = {value}"
            for row in toggle_table(_listed_as(backend))
            if (value := taken.value(row.stage, row.name)) != asked.value(row.stage, row.name)
        ]
        if not left:
            return self.remarks(backend, primitive)
        filter = asked.project.filter
        way = f" (--antialiasing {filter} trains for that filter)" if filter != antialiasing else ""
        return [
            *self.remarks(backend, primitive),
            f"Training keeps {_and(left)}: splats are trained for one way of drawing them, and only pictures of them "
            f"can have another{way}.",
        ]


NO_CHOICE = PolicyChoice()


def choose_policy(step: str = DEFAULT, toggles: Sequence[str] = ()) -> PolicyChoice:
    """Returns the policy of a preset with toggles on top, each as STAGE.FIELD=VALUE.

    Raises InputError for an unknown name or value, and for a value that needs another toggle set first.
    """
    policy = policy_of_step(step)
    given: dict[str, str] = {}
    rows: list[tuple[Toggle, str]] = []
    for row, value in map(_parsed, toggles):
        if given.setdefault(row.key, value) != value:
            raise InputError(f"{OPTION} sets {row.key} twice, to {given[row.key]} and to {value}; give it once.")
        policy = policy.with_value(row.stage, row.name, value)
        rows.append((row, value))
    _check_needs(policy, rows)
    policy, followed = settle(policy, "cuda", keep="")
    _check_needs(policy, rows)  # again: one toggle may need another that has just been switched off
    return PolicyChoice(step, tuple(given.items()), followed, policy)


def in_words(policy: Policy, backend: str) -> str:
    """Returns a policy in words, as far as a backend tells it apart: "s06, sh dtype = split"."""
    return describe(policy, _listed_as(backend))


def _check_needs(policy: Policy, rows: Sequence[tuple[Toggle, str]]) -> None:
    """Raises InputError if a value that was asked for does not go with the others."""
    for row, value in rows:
        if unmet := policy.unmet(row, value):
            raise InputError(unmet)


def _parsed(text: str) -> tuple[Toggle, str]:
    """Returns the toggle and the value of "blend.map=columns_8x8", by present or earlier names."""
    key, equals, value = in_present_names(text).partition("=")
    stage, dot, name = key.partition(".")
    if not (equals and dot):
        raise InputError(f"{OPTION} takes STAGE.FIELD=VALUE, for example blend.map=columns_8x8, got {text!r}.")
    table = list(toggle_table("cuda"))
    fields = {row.name: row for row in table if row.stage == stage}
    if not fields:
        stages = dict.fromkeys(row.stage for row in table)
        raise InputError(f"{OPTION} {text}: there is no stage {stage!r}; stages are {', '.join(stages)}.")
    if name not in fields:
        raise InputError(f"{OPTION} {text}: {stage} has no toggle {name!r}; it has {', '.join(fields)}.")
    row = fields[name]
    if value not in row.values:
        raise InputError(f"{OPTION}: {row.key} must be one of {', '.join(row.values)}, got {value!r}.")
    return row, value


def _listed_as(backend: str) -> str:
    """Returns the backend whose toggles count: the definition has those of the CPU."""
    return "cpu" if backend == "reference" else backend


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
