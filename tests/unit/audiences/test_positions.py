"""Pairs of positions against distances between all points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.audiences.building import Positions
from ray_messaging.audiences.files import read_edges, write_edges
from ray_messaging.errors import AudienceTooLarge, ConfigError, InvalidColumns, UnknownName
from ray_messaging.model.columns import IdColumn

MANY = 10**9


def placed(points, radius=1.0, ids=None, limit=MANY):
    ids = [*range(len(points))] if ids is None else ids
    return Positions.given(IdColumn.checked(ids), points, radius, limit)


def near(points, radius):
    points, found = np.asarray(points, float), []
    for low in range(0, len(points), 512):
        squares = sum((column[low : low + 512, None] - column) ** 2 for column in points.T)
        found.append(np.argwhere(squares <= radius * radius) + np.array([low, 0]))
    pairs = np.concatenate(found)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def listed(edges):
    rows, hearers = edges.expand(edges.senders.column)
    return np.stack((edges.senders.ints[rows], hearers.values), axis=1)


def pairs_of(edges):
    return {*map(tuple, listed(edges).tolist())}


@st.composite
def crowds(draw):
    """Points in one to five dimensions: on a lattice, so that many are just at the radius, together, or far away."""
    dimensions, count = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    points = numbers.integers(-5, 6, (count, dimensions)) * draw(st.sampled_from([1.0, 0.1, 2.5]))
    if draw(st.booleans()):
        points += numbers.random(points.shape)
    if draw(st.booleans()):
        points[numbers.random(count) < 0.1] *= draw(st.sampled_from([-1e3, 1e9, 1e100]))
    return points, draw(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.5, 5.0]))


@given(crowds())
def test_agents_within_the_radius_are_pairs(crowd):
    points, radius = crowd
    np.testing.assert_array_equal(listed(placed(points, radius).edges()), near(points, radius))


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("spread", [8.0, 3000.0])
def test_the_pairs_of_many_agents_are_those_within_the_radius(dimensions, spread):
    numbers = np.random.default_rng(dimensions)
    points = np.concatenate([numbers.random((5000, dimensions)) * spread, numbers.normal(size=(1000, dimensions))])
    wanted = near(points, 0.5)
    np.testing.assert_array_equal(listed(placed(points, 0.5).edges()), wanted)
    with pytest.raises(AudienceTooLarge) as caught:
        placed(points, 0.5, limit=len(wanted) - 1).edges()
    assert caught.value.pairs == len(wanted)


def test_positions_move_and_are_kept_in_files(tmp_path):
    layout = placed([[0.0, 0.0], [0.5, 0.0], [9.0, 0.0]], ids=[7, 3, 5])
    assert pairs_of(layout.edges()) == {(3, 7), (7, 3)}
    moved = layout.moved(IdColumn.of([5, 7]), [[0.5, 1.0], [-9, 0]]).edges()
    assert pairs_of(moved) == {(3, 5), (5, 3)}
    assert moved.digest != layout.edges().digest
    write_edges(tmp_path / "street@2", moved)
    found = read_edges(tmp_path / "street@2", "street", 2)
    assert (pairs_of(found), found.digest) == (pairs_of(moved), moved.digest)
    assert found.positions.ids.tolist() == [3, 5, 7]
    np.testing.assert_array_equal(found.positions.points, [[0.5, 0], [0.5, 1], [-9, 0]])
    assert (found.positions.radius, found.positions.limit) == (1.0, MANY)


def test_too_many_pairs_are_refused_with_their_number():
    with pytest.raises(
        AudienceTooLarge, match="radius 50 makes 9,900 pairs of 100 agents, the limit is 9,899"
    ) as caught:
        placed(np.zeros((100, 2)), 50, limit=9_899).edges()
    assert (caught.value.pairs, caught.value.limit) == (9_900, 9_899)
    assert placed(np.zeros((100, 2)), 50, limit=9_900).edges().pairs == 9_900


def test_pairs_of_a_large_crowd_are_estimated():
    points = np.random.default_rng(1).normal(size=(40_000, 2))
    with pytest.raises(AudienceTooLarge, match=r"about [\d,]+ pairs of 40,000 agents") as caught:
        placed(points, limit=10).edges()
    wanted = 0.221 * 40_000**2  # of two normal points, the share within 1: 1 - exp(-1/4)
    assert caught.value.pairs == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("points", "radius", "text"),
    [
        ([[0, 0]], 1, r"shape \(2, d\), a row for each agent and a column .* have the shape \(1, 2\)"),
        ([0, 0], 1, r"the given positions have the shape \(2,\)"),
        ([[0, 0], [1, np.nan]], 1, r"row 1 of the positions is \[1.0, nan\]"),
        ([[0, 0], [1, np.inf]], 1, r"row 1 of the positions is \[1.0, inf\]"),
        ([["a", 0], [1, 0]], 1, "positions must be numbers, in an array of shape"),
        ([[0, 0], [1, 1]], -1, "radius=-1 must be a finite number above 0"),
        ([[0, 0], [1, 1]], None, "radius=None"),
        ([[0, 0], [1, 1]], float("nan"), "radius=nan"),
    ],
)
def test_bad_positions_are_refused_with_the_value(points, radius, text):
    with pytest.raises((InvalidColumns, ConfigError), match=text):
        placed(points, radius, ids=[0, 1])


def test_moves_of_strangers_and_of_other_shapes_are_refused():
    layout = placed([[0, 0], [1, 1]])
    with pytest.raises(UnknownName, match="agent 8 has no position"):
        layout.moved(IdColumn.of([0, 8]), [[1, 1], [2, 2]])
    with pytest.raises(InvalidColumns, match=r"shape \(1, 2\)"):
        layout.moved(IdColumn.of([0]), [[1, 1, 1]])
    with pytest.raises(InvalidColumns, match="int ids, but one has the id 'a'"):
        placed([[0, 0]], ids=["a"])


@pytest.mark.parametrize("radius", [1e-170, 1e160])
def test_a_radius_whose_square_floats_cannot_hold_is_refused(radius):
    with pytest.raises(ConfigError, match="use another unit"):
        placed([[0.0], [1.25 * radius]], radius)
