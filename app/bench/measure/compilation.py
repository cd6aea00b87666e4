"""Prints the seconds until every kernel of a training step on the CPU is ready.

`bench/cpu.py` runs this module twice, in processes of their own: with an empty cache, which compiles, then again, which
loads.
"""

from time import perf_counter

import numpy as np

from splatscope.kernels.backends import make_backend
from splatscope.kernels.cpu import training


def main() -> None:
    """Prepares all kernels and prints how long that took."""
    start = perf_counter()
    backend = make_backend("cpu")
    backend.warm_up(training=True)
    image = np.zeros((16, 16, 3), np.float32)
    training.loss(image, image)
    rows = [np.zeros((4, 3), np.float32) for _ in range(4)]
    training.adam(*rows, rates=np.ones(3, np.float32), step=1)
    print(perf_counter() - start)


if __name__ == "__main__":
    main()
