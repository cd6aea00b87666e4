"""Lists the bit checksums of every array of the benchmark scenes, and the counts of their pictures.

Measured once and compared ever after; `generated.py`, `app/bench/cpu.py` and `bench/ladder.py` do the comparing.
"""

from __future__ import annotations

from typing import NamedTuple


class Fingerprint(NamedTuple):
    """Identifies the numbers of one array, in memory order."""

    crc: str  # CRC32 of the float32 bytes
    trend: float  # sum(value * ramp from -1 to 1) / sqrt(size): far off for other draws, unmoved by rounding


class Picture(NamedTuple):
    """Holds counts by float64 code that is not ours: exact 1/255 ellipse, pixel centres, near plane 0.2."""

    visible: int
    instances: int
    transmittance: float  # mean over all pixels


FINGERPRINTS: dict[str, dict[str, Fingerprint]] = {
    "S1": {
        "means": Fingerprint("1efa2e5b", -2.1601),
        "log_scales": Fingerprint("8485bce5", -0.0697),
        "quats": Fingerprint("e96fbb74", 0.3065),
        "logit_opacities": Fingerprint("65e88e80", 1.257),
        "sh0": Fingerprint("5ca63a3b", 0.3137),
        "sh_rest": Fingerprint("29ca9963", -0.0458),
    },
    "S2": {
        "means": Fingerprint("07e73321", -2.6354),
        "log_scales": Fingerprint("adc273c5", 1.0353),
        "quats": Fingerprint("1bf197d8", -0.0181),
        "logit_opacities": Fingerprint("322dc678", -1.0402),
        "sh0": Fingerprint("27c88895", -0.1891),
        "sh_rest": Fingerprint("d58c290d", 0.0892),
    },
    "S3": {
        "means": Fingerprint("3958851c", 8.5215),
        "log_scales": Fingerprint("7eadb8c7", 0.5512),
        "quats": Fingerprint("608ce642", -0.2596),
        "logit_opacities": Fingerprint("2559fb2c", -1.8086),
        "sh0": Fingerprint("b2540ed7", 0.329),
        "sh_rest": Fingerprint("62525a87", -0.0291),
    },
    "S4": {
        "means": Fingerprint("2618c32c", -0.1946),
        "log_scales": Fingerprint("8fe6a838", 0.6605),
        "quats": Fingerprint("d4f015b2", 0.0169),
        "logit_opacities": Fingerprint("61997c87", -0.1401),
        "sh0": Fingerprint("90f26b18", 0.1874),
        "sh_rest": Fingerprint("ee15671e", 0.0219),
    },
    "S1m": {
        "means": Fingerprint("72132ff1", 859.5608),
        "log_scales": Fingerprint("395dca63", 35.6918),
        "quats": Fingerprint("92dad801", -9.5135),
        "logit_opacities": Fingerprint("fc6bfc5e", -1.8384),
        "sh0": Fingerprint("5ca63a3b", 0.3137),
        "sh_rest": Fingerprint("29ca9963", -0.0458),
    },
    "S2m": {
        "means": Fingerprint("eff55b40", 6106.9426),
        "log_scales": Fingerprint("81a06dbf", 345.3156),
        "quats": Fingerprint("acac51ee", -11.0247),
        "logit_opacities": Fingerprint("b599ca7a", 0.3909),
        "sh0": Fingerprint("27c88895", -0.1891),
        "sh_rest": Fingerprint("d58c290d", 0.0892),
    },
}

EXPECTED = {
    "S1": Picture(548_205, 1_695_167, 0.0375455),
    "S2": Picture(2_014_274, 3_068_623, 0.1397564),
    "S3": Picture(1_560_539, 2_310_978, 0.3722283),
    "S4": Picture(98_442, 215_681, 0.6534979),
    "S1m": Picture(548_205, 1_695_167, 0.0375455),
    "S2m": Picture(2_014_274, 3_068_623, 0.1397564),
    "small": Picture(19_622, 29_061, 0.7596052),
}
