"""Scene panel: opens a path, tells what is open, sets how it is looked at, goes to its cameras, saves its splats."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

import dearpygui.dearpygui as dpg

from splatscope.kernels.wording import counted
from splatscope.viewer.drawing.style import inside
from splatscope.viewer.drawing.widgets import (
    Facts,
    Panel,
    Ui,
    button,
    count,
    fit,
    labelled,
    text_width,
    tooltip,
    write_tip,
)
from splatscope.viewer.messages.view import EngineStatus, NamedCamera, Picture, SceneInfo
from splatscope.viewer.panels.checkup import CheckupPage
from splatscope.viewer.state.navigation import Vector

KINDS = {"splats": "splat file", "model": "trained model", "dataset": "capture"}
QUARTER = 0.5 * math.pi
COMBO, COMBO_EDGES = 180, 42  # points of the list of cameras, and the part of them without text
HELD_OUT = "  (held out)"


class ScenePanel(Panel):
    """See the module's text."""

    title = "Scene"

    def __init__(self, ui: Ui) -> None:
        super().__init__(ui)
        self._generation: int | None = None
        self._listed: tuple[NamedCamera, ...] = ()

    def build(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        with inside(dpg.add_group(horizontal=True)):
            self.path_box = self.ui.field(
                dpg.add_input_text(
                    hint="Path of a .ply, model or capture",
                    width=-px(70),
                    on_enter=True,
                    callback=lambda _, text: session.open(text),
                )
            )
            button(style, "Open", lambda: session.open(dpg.get_value(self.path_box)), width=62, primary=True)
        with inside(dpg.add_group(show=False)) as self._open_part:
            self._facts = Facts(style, ("File", "Contents", "Cameras"))
            self._path_tip = tooltip(style, self._facts.item("File"), "")
            self._build_look()
            self._build_turns()
            self._build_cameras()
            self._checkup = CheckupPage(self.ui)
            tip = "Writes the splats as they are now to a .ply file (Ctrl + S)"
            button(style, "Save splats as…", lambda: session.browse("save"), tip=tip)

    def _build_look(self) -> None:
        style, session = self.style, self.session
        with labelled(style, "SH degree"):
            self._degree = self.ui.field(
                dpg.add_slider_int(
                    max_value=3, width=-1, clamped=True, callback=lambda _, degree: session.set_sh_degree(degree)
                )
            )
        with labelled(style, "Field of view"):
            self._fov = self.ui.field(
                dpg.add_slider_float(
                    min_value=10.0,
                    max_value=120.0,
                    format="%.0f°",
                    clamped=True,
                    width=-1,
                    callback=lambda _, degrees: session.move(lambda nav: nav.with_fov(math.radians(degrees))),
                )
            )
        with labelled(style, "Background"):
            self._background = self.ui.field(
                dpg.add_color_edit(
                    no_alpha=True,
                    no_inputs=True,
                    no_drag_drop=True,
                    callback=lambda item: session.set_background([c / 255.0 for c in dpg.get_value(item)[:3]]),
                )
            )
            button(style, "Black", lambda: session.set_background((0, 0, 0)))
            button(style, "White", lambda: session.set_background((1, 1, 1)))
            button(style, "Reset", self._own_background, tip="Use the background of training")

    def _build_turns(self) -> None:
        style, session, turn = self.style, self.session, self.session.turn_scene
        with labelled(style, "Up axis"):
            self._up = dpg.add_button(label="-Y", width=style.px(86), enabled=False)
            tip = "The axis that points up on the screen, in the coordinates of the file, which is not changed"
            tooltip(style, self._up, tip)
            button(
                style,
                "Flip",
                lambda: turn(lambda nav: nav.flipped()),
                tip="Turn the scene upside down",
            )
            button(style, "Reset", session.reset_up, tip="Use the up axis estimated from the cameras")
        with labelled(style, "Turn by 90°"):
            turns = (
                (dpg.mvDir_Left, lambda: turn(lambda nav: nav.tipped(roll=-QUARTER)), "Roll to the left"),
                (
                    dpg.mvDir_Right,
                    lambda: turn(lambda nav: nav.tipped(roll=QUARTER)),
                    "Roll to the right",
                ),
                (dpg.mvDir_Up, lambda: turn(lambda nav: nav.tipped(pitch=-QUARTER)), "Tip away from you"),
                (dpg.mvDir_Down, lambda: turn(lambda nav: nav.tipped(pitch=QUARTER)), "Tip towards you"),
            )
            for direction, action, tip in turns:
                tooltip(style, dpg.add_button(arrow=True, direction=direction, callback=action), tip)

    def _build_cameras(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        with inside(dpg.add_group(show=False)) as self._camera_row, labelled(style, "Camera"):
            previous = dpg.add_button(arrow=True, direction=dpg.mvDir_Left, callback=lambda: session.step_camera(-1))
            tooltip(style, previous, "Previous training camera (Left)")
            self._cameras = self.ui.field(
                dpg.add_combo(width=-px(34), callback=lambda _, name: self._go_to(name), height_mode=3)
            )
            following = dpg.add_button(arrow=True, direction=dpg.mvDir_Right, callback=lambda: session.step_camera(1))
            tooltip(style, following, "Next training camera (Right)")
        self._camera_names: list[str] = []

    def _own_background(self) -> None:
        if self.session.status.scene is not None:
            self.session.set_background(self.session.status.scene.background)

    def _go_to(self, name: str) -> None:
        if name in self._camera_names:
            self.session.go_to_camera(self._camera_names.index(name))

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session, scene = self.session, status.scene
        if scene is None:
            return
        if scene.generation != self._generation or scene.cameras is not self._listed:
            self._generation, self._listed = scene.generation, scene.cameras
            self._show_scene(scene)
        self._checkup.show(status.checkup)
        self._facts.show("Contents", f"{counted(status.splat_count, 'splat')}, SH degree {scene.sh_degree}")
        dpg.set_value(self._degree, min(session.settings.sh_degree, scene.sh_degree))
        dpg.set_value(self._fov, math.degrees(session.nav.lens.fov_y))
        dpg.set_value(self._background, [255.0 * c for c in session.settings.background] + [255.0])
        dpg.configure_item(self._up, label=axis_name(session.nav.up))
        if self._camera_names:
            here = session.at_camera is not None
            dpg.set_value(self._cameras, self._in_short(scene, session.camera_index) if here else "free view")

    def _in_short(self, scene: SceneInfo, index: int) -> str:
        """Returns a camera's name cut to the width of the list; "held out" stays readable."""
        end = ", held out" if scene.cameras[index].is_test else ""
        room = (dpg.get_item_rect_size(self._cameras)[0] or self.style.px(COMBO)) - self.style.px(COMBO_EDGES)
        name = self._camera_names[index].removesuffix(HELD_OUT)
        return fit(name, room - text_width(end, self.style.body), self.style.body) + end

    def _show_scene(self, scene: SceneInfo) -> None:
        style = self.style
        dpg.configure_item(self._open_part, show=True)
        name = scene.path.name or str(scene.path)
        if scene.kind == "model":  # <model>/point_cloud/iteration_N/point_cloud.ply: every file has the same name
            name = f"{scene.path.parents[2].name}, {scene.path.parent.name.replace('_', ' ')}"
        self._facts.show("File", fit(name, style.px(225), style.body))
        write_tip(style, self._path_tip, f"{scene.path} ({KINDS[scene.kind]})")
        held_out = sum(camera.is_test for camera in scene.cameras)
        cameras = f"{count(len(scene.cameras))}, {held_out} held out" if held_out else count(len(scene.cameras))
        self._facts.show("Cameras", cameras if scene.cameras else "none")
        dpg.configure_item(self._degree, max_value=max(scene.sh_degree, 1), enabled=scene.sh_degree > 0)
        short = [PurePosixPath(camera.name).name for camera in scene.cameras]
        if len(set(short)) < len(short):
            short = [camera.name for camera in scene.cameras]
        self._camera_names = [
            f"{k + 1}  {name}{HELD_OUT if camera.is_test else ''}"
            for k, (camera, name) in enumerate(zip(scene.cameras, short, strict=True))
        ]
        dpg.configure_item(self._cameras, items=self._camera_names)
        dpg.configure_item(self._camera_row, show=bool(self._camera_names))


def axis_name(up: Vector) -> str:
    """Returns "-Y" for an axis, and "approx. -Y" for a direction that is nearest to it."""
    k = max(range(3), key=lambda i: abs(up[i]))
    name = ("-" if up[k] < 0 else "+") + "XYZ"[k]
    return name if abs(up[k]) > 0.9999 else f"approx. {name}"
