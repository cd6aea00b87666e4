"""Tests random numbers that follow from seed, step and splat."""

from __future__ import annotations

import numpy as np
import pytest

from splatscope.kernels.noise import WORD, normal_numbers, philox

# Counter, key and words of Random123's own test of philox4x32 with ten rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD, WORD, WORD, WORD), (WORD, WORD), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_words_are_those_of_the_published_generator(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    found = philox(tuple(np.array([word], np.uint64) for word in counter), key)
    assert tuple(int(word[0]) for word in found) == words


def test_numbers_are_normal_and_independent_between_axes_splats_and_steps() -> None:
    count = 200_000
    numbers = normal_numbers(5, 100, count).astype(np.float64)
    error = 1 / np.sqrt(count)
    np.testing.assert_allclose(numbers.mean(0), 0, atol=5 * error)
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(3), atol=7 * error)
    np.testing.assert_allclose((numbers**4).mean(0), 3, atol=60 * error)
    for other in (normal_numbers(5, 101, count), normal_numbers(6, 100, count), np.roll(numbers, 1, axis=0)):
        assert np.abs((numbers * other).mean(0)).max() < 5 * error


def test_numbers_do_not_depend_on_how_many_splats_there_are() -> None:
    np.testing.assert_array_equal(normal_numbers(2**63 + 1, 7, 100)[:30], normal_numbers(2**63 + 1, 7, 30))
