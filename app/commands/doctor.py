"""Prints one page about a capture before it is trained: `splatscope doctor`.

`assets/checks/checkup.py` examines the capture; `opening/examine.py` adds the memory and time that training takes. The
window shows the same `Checkup`.
"""

from __future__ import annotations

from splatscope.app.opening.examine import examine
from splatscope.app.options.doctor import DoctorOptions
from splatscope.app.terminal import say
from splatscope.assets.checks.checkup import check_up_bare
from splatscope.assets.formats import open_capture
from splatscope.assets.sfm.search import NoCamerasError
from splatscope.kernels.backends import make_backend
from splatscope.training.config import DataConfig, TrainConfig


def run(options: DoctorOptions) -> None:
    """Prints the page. Raises InputError if the capture does not open."""
    data = DataConfig(images=options.images, resolution=options.resolution, axes=options.axes)
    config = TrainConfig(iterations=options.iterations, data=data)
    config.check()
    try:
        capture = open_capture(options.dataset, options.images, axes=options.axes)
    except NoCamerasError as error:
        print("\n".join(check_up_bare(error.path, error.folder, decode=not options.quick).lines()))
        return
    backend = None if options.quick else make_backend(options.backend)
    say(examine(capture, config, backend, decode=not options.quick).lines())
