"""Opens a path, describes the open scene, sets how it is viewed, goes to its cameras and saves its splats."""

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
    label_row,
    text_width,
    tooltip,
    write_tip,
)
from splatscope.viewer.messages.view import EngineStatus, NamedCamera, Picture, SceneInfo
from splatscope.viewer.panels.checkup import CheckupPage
from splatscope.viewer.state.navigation import Vector

KINDS = {"splats": "splat file", "model": "trained model", "dataset": "capture"}
PRIMITIVES = {"3dgs": "", "2dgs": " (2DGS)", "3dgut": " (3DGUT)"}
QUARTER = 0.5 * math.pi
COMBO, COMBO_EDGES = 180, 42  # points: width of the list of cameras, and its edges without text
HELD_OUT = "  (held out)"


class ScenePanel(Panel):
    """Shows the section "Scene" of the dock."""

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
            tip = "Saves the present splats as a .ply file (Ctrl + S)"
            button(style, "Save splats as…", lambda: session.dialogs.browse("save"), tip=tip)

    def _build_look(self) -> None:
        style, session = self.style, self.session
        with label_row(style, "SH degree"):
            self._degree = self.ui.field(
                dpg.add_slider_int(
                    max_value=3, width=-1, clamped=True, callback=lambda _, degree: session.view.set_sh_degree(degree)
                )
            )
        with label_row(style, "Field of view"):
            self._fov = self.ui.field(
                dpg.add_slider_float(
                    min_value=10.0,
                    max_value=120.0,
                    format="%.0f°",
                    clamped=True,
                    width=-1,
                    callback=lambda _, degrees: session.view.move(lambda nav: nav.with_fov(math.radians(degrees))),
                )
            )
        with label_row(style, "Background"):
            self._background = self.ui.field(
                dpg.add_color_edit(
                    no_alpha=True,
                    no_inputs=True,
                    no_drag_drop=True,
                    callback=lambda item: session.view.set_background([c / 255.0 for c in dpg.get_value(item)[:3]]),
                )
            )
            button(style, "Black", lambda: session.view.set_background((0, 0, 0)))
            button(style, "White", lambda: session.view.set_background((1, 1, 1)))
            button(style, "Reset", self._own_background, tip="Restores the background used in training")

    def _build_turns(self) -> None:
        style, session, turn = self.style, self.session, self.session.view.turn_scene
        with label_row(style, "Up axis"):
            self._up = dpg.add_button(label="-Y", width=style.px(86), enabled=False)
            tip = "The file's axis that points up on the screen. Turning the view does not change the file."
            tooltip(style, self._up, tip)
            button(
                style,
                "Flip",
                lambda: turn(lambda nav: nav.flip()),
                tip="Turns the scene upside down",
            )
            button(
                style, "Reset", session.view.reset_up, tip="Restores the up axis estimated when the scene was opened"
            )
        with label_row(style, "Turn by 90°"):
            turns = (
                (dpg.mvDir_Left, lambda: turn(lambda nav: nav.tip(roll=-QUARTER)), "Turns the scene 90° to the left"),
                (
                    dpg.mvDir_Right,
                    lambda: turn(lambda nav: nav.tip(roll=QUARTER)),
                    "Turns the scene 90° to the right",
                ),
                (dpg.mvDir_Up, lambda: turn(lambda nav: nav.tip(pitch=-QUARTER)), "Tips the scene 90° away from you"),
                (dpg.mvDir_Down, lambda: turn(lambda nav: nav.tip(pitch=QUARTER)), "Tips the scene 90° towards you"),
            )
            for direction, action, tip in turns:
                tooltip(style, dpg.add_button(arrow=True, direction=direction, callback=action), tip)

    def _build_cameras(self) -> None:
        style, session, px = self.style, self.session, self.style.px
        with inside(dpg.add_group(show=False)) as self._camera_row, label_row(style, "Camera"):
            previous = dpg.add_button(
                arrow=True, direction=dpg.mvDir_Left, callback=lambda: session.view.step_camera(-1)
            )
            tooltip(style, previous, "Goes to the previous photograph's camera (Left)")
            self._cameras = self.ui.field(
                dpg.add_combo(width=-px(34), callback=lambda _, name: self._go_to(name), height_mode=3)
            )
            following = dpg.add_button(
                arrow=True, direction=dpg.mvDir_Right, callback=lambda: session.view.step_camera(1)
            )
            tooltip(style, following, "Goes to the next photograph's camera (Right)")
        self._camera_names: list[str] = []

    def _own_background(self) -> None:
        if self.session.engine.status.scene is not None:
            self.session.view.set_background(self.session.engine.status.scene.background)

    def _go_to(self, name: str) -> None:
        if name in self._camera_names:
            self.session.view.go_to_camera(self._camera_names.index(name))

    def update(self, status: EngineStatus, picture: Picture | None) -> None:
        session, scene = self.session, status.scene
        if scene is None:
            return
        if scene.generation != self._generation or scene.cameras is not self._listed:
            self._generation, self._listed = scene.generation, scene.cameras
            self._show_scene(scene)
        self._checkup.show(status.checkup)
        kind = PRIMITIVES[scene.primitive]
        self._facts.show("Contents", f"{counted(status.splat_count, 'splat')}{kind}, SH degree {scene.sh_degree}")
        dpg.set_value(self._degree, min(session.view.render_settings.sh_degree, scene.sh_degree))
        dpg.set_value(self._fov, math.degrees(session.view.nav.lens.fov_y))
        dpg.set_value(self._background, [255.0 * c for c in session.view.render_settings.background] + [255.0])
        dpg.configure_item(self._up, label=axis_name(session.view.nav.up))
        if self._camera_names:
            here = session.view.at_camera is not None
            dpg.set_value(self._cameras, self._in_short(scene, session.view.camera_index) if here else "free view")

    def _in_short(self, scene: SceneInfo, index: int) -> str:
        """Returns a camera's name cut to the width of the list; "held out" is never cut."""
        end = ", held out" if scene.cameras[index].is_test else ""
        room = (dpg.get_item_rect_size(self._cameras)[0] or self.style.px(COMBO)) - self.style.px(COMBO_EDGES)
        name = self._camera_names[index].removesuffix(HELD_OUT)
        return fit(name, room - text_width(end, self.style.body), self.style.body) + end

    def _show_scene(self, scene: SceneInfo) -> None:
        style = self.style
        dpg.configure_item(self._open_part, show=True)
        name = scene.path.name or str(scene.path)
        if scene.kind == "model":  # <model>/point_cloud/iteration_N/point_cloud.ply: all files have the same name
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
    """Returns "-Y" for a direction along an axis, "approx. -Y" for one near it."""
    k = max(range(3), key=lambda i: abs(up[i]))
    name = ("-" if up[k] < 0 else "+") + "XYZ"[k]
    return name if abs(up[k]) > 0.9999 else f"approx. {name}"
