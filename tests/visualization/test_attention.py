"""Pictures of attention patterns, against the dense mask."""

import numpy as np
import pytest

from pretrax.visualization.attention_pictures import picture, rectangles
from pretrax.visualization.examples import AttentionPattern
from pretrax.visualization.terminal import half_blocks

ONE = np.array([1, 1, 1, 1])
CAUSAL = AttentionPattern("decoder", np.array([[0, 0, 0, 0], [1, 2, 3, 4]]), 4, ONE)
PACKED = AttentionPattern(
    "encoder", np.array([[0, 0, 2, 2], [2, 2, 4, 4]]), 4, np.array([1, 1, 2, 2])
)
CROSS = AttentionPattern("cross", np.array([[0, 0, 3], [3, 3, 7]]), 7, np.array([1, 1, 2]))
BACKWARDS = AttentionPattern("decoder", np.array([[2, 0], [4, 2]]), 4, np.array([1, 1]))
ALL = (CAUSAL, PACKED, CROSS, BACKWARDS)


def dense(attention):
    start, end = attention.intervals[:, :, None]
    key = np.arange(attention.keys)
    return (key >= start) & (key < end)


@pytest.mark.parametrize("attention", ALL, ids=("causal", "packed", "cross", "backwards"))
def test_a_picture_with_room_is_the_mask(attention):
    share, documents = picture(attention, 16)
    np.testing.assert_array_equal(share, dense(attention))
    np.testing.assert_array_equal(documents, attention.documents)


@pytest.mark.parametrize("attention", ALL, ids=("causal", "packed", "cross", "backwards"))
def test_rectangles_cover_what_is_seen_once(attention):
    painted = np.zeros(dense(attention).shape, int)
    for x, y, width, height, _ in rectangles(attention):
        painted[y : y + height, x : x + width] += 1
    np.testing.assert_array_equal(painted, dense(attention))
    assert len(rectangles(PACKED)) == 2


def test_a_small_picture_keeps_the_share_of_what_is_seen():
    n = 100
    start, end = np.zeros(n, int), np.arange(n) + 1
    attention = AttentionPattern("decoder", np.stack([start, end]), n, np.ones(n, int))
    share, _ = picture(attention, 10)
    assert share.shape == (10, 10)
    assert share.mean() == pytest.approx(dense(attention).mean())
    assert share[3, 2] == 1 and share[3, 4] == 0 and 0 < share[3, 3] < 1


def test_one_scale_in_both_directions():
    share, _ = picture(CROSS, 4)
    assert share.shape == (2, 4)


def test_half_blocks_are_two_rows_a_line():
    drawn = half_blocks(*picture(CAUSAL, 8))
    assert drawn.plain == "█▄  \n███▄"
    assert half_blocks(*picture(CROSS, 8)).plain == "███    \n   ▀▀▀▀"
