import numpy as np
import pytest

import howsure as hs
from howsure_paper.datasets.rooms import FRAMES, Camera, Solid, _rays, _render, outdoors, rooms, trace


def vector(*values):
    return np.array(values, np.float32)


def white(u, v):
    return np.ones((3, len(u)), np.float32)


ROOM = Solid(vector(0, 1.5, 0), vector(2, 1.5, 3), white, hollow=True)


# Depth, against geometry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yaw", "distance"), [(0, 3 - 0.5), (np.pi / 2, 2 - 0.25), (np.pi, 3 + 0.5), (-np.pi / 2, 2 + 0.25)]
)
def test_depth_of_a_wall_is_its_distance_over_all_of_it(yaw, distance):
    depth, owner = trace([ROOM], Camera(vector(0.25, 1.2, 0.5), yaw, view=0.3), (9, 13))
    assert depth == pytest.approx(np.full((9, 13), distance), rel=1e-5)  # a plane has one depth, unlike one range
    assert (owner == 0).all()


def test_depth_of_the_floor():
    height, size, view = 1.2, (41, 51), np.pi / 2
    depth, _ = trace([ROOM], Camera(vector(0, height, 0), view=view), size)
    down = (np.arange(41) - 20) * 2 * np.tan(view / 2) / 51
    seen = (down > 0) & (height / np.maximum(down, 1e-9) < 3)
    assert seen.sum() > 5
    assert depth[seen, 25] == pytest.approx(height / down[seen], rel=1e-5)


@pytest.mark.parametrize("pitch", [0.6, 1.1])
def test_camera_that_looks_down(pitch):
    depth, _ = trace([ROOM], Camera(vector(0, 1.2, 0), yaw=0.4, pitch=-pitch), (7, 9))
    assert depth[3, 4] == pytest.approx(1.2 / np.sin(pitch), rel=1e-5)


def test_depth_of_a_ball():
    ball, camera = Solid(vector(0, 0, 4), vector(1, 1, 1), white, ball=True), Camera(vector(0, 0, 0))
    depth, owner = trace([ball], camera, (81, 101))
    assert depth[40, 50] == depth.min() == pytest.approx(3, rel=1e-6)
    across = np.tan(np.pi / 6) / 101 * (2 * np.arange(101) - 100)
    angle = np.arctan(np.hypot(across[None, :], across[10:91, None]))
    assert np.array_equal(owner == 0, angle < np.arcsin(1 / 4))
    assert np.isinf(depth[owner < 0]).all()
    rays = _rays(camera, (81, 101)).reshape(3, 81, 101)
    on = depth[owner == 0] * rays[:, owner == 0] - np.array([[0], [0], [4]])
    assert np.linalg.norm(on, axis=0) == pytest.approx(np.ones(on.shape[1]), rel=1e-3)


def test_edge_of_a_turned_box():
    box = Solid(vector(0, 0, 4), vector(1, 1, 1), white, yaw=np.pi / 4)
    depth, _ = trace([box], Camera(vector(0, 0, 0)), (7, 101))
    assert depth[3, 50] == pytest.approx(4 - np.sqrt(2), rel=1e-5)
    assert depth[3, 60] == pytest.approx(depth[3, 40], rel=1e-5)
    assert depth[3, 60] > depth[3, 50]


def test_right_is_right_and_up_is_up_and_near_hides_far():
    right, above = (Solid(centre, vector(0.5, 0.5, 0.5), white) for centre in (vector(2, 0, 5), vector(0, 1.5, 5)))
    near = Solid(vector(2, 0, 3), vector(0.1, 0.1, 0.1), white, ball=True)
    _, owner = trace([right, above, near], Camera(vector(0, 0, 0)), (80, 100))
    assert np.argwhere(owner == 0)[:, 1].min() > 50
    assert np.argwhere(owner == 1)[:, 0].max() < 40
    _, owner = trace([near, right], Camera(vector(2, 0, 0)), (81, 101))
    assert owner[40, 50] == 0
    _, owner = trace([right, near], Camera(vector(2, 0, 0)), (81, 101))
    assert owner[40, 50] == 1


def test_light_on_a_wall():
    lamp = (vector(0, 1.5, 1), vector(1, 0.5, 0), 4.0)
    color, depth = _render(([ROOM], [], [lamp]), Camera(vector(0, 1.5, 0), view=0.3), (9, 13), 0.1)
    power = 1 / (1 + 2**2 / 4**2)  # two metres from the lamp, straight on
    assert color[4, 6] == pytest.approx([0.1 + power, 0.1 + 0.5 * power, 0.1], rel=1e-3)
    assert color[4, 6, 0] == color[..., 0].max()
    assert depth[0, 0] == pytest.approx(3, rel=1e-5)


def test_thing_throws_a_shadow():
    """A ball half-way between the lamp and the middle of the view, outside of which it is."""
    lamp, camera = (vector(-1, 1.5, 1), vector(1, 1, 1), 4.0), Camera(vector(0, 1.5, 0), view=0.3)
    ball = Solid(vector(-0.5, 1.5, 2), vector(0.1, 0.1, 0.1), white, ball=True)
    lit, _ = _render(([ROOM], [], [lamp]), camera, (9, 13), 0.1)
    shaded, depth = _render(([ROOM], [ball], [lamp]), camera, (9, 13), 0.1)
    assert depth == pytest.approx(np.full((9, 13), 3), rel=1e-5)
    power = 2 / np.sqrt(5) / (1 + 5 / 4**2)
    assert lit[4, 6] == pytest.approx(np.full(3, 0.1 + power), rel=1e-3)
    assert shaded[4, 6] == pytest.approx(np.full(3, 0.1 + 0.2 * power), rel=1e-3)
    assert np.array_equal(shaded[:, 12], lit[:, 12])


# The sets -------------------------------------------------------------------------------------------------------------


def test_rooms_equal_their_description():
    found = rooms(10, seed=1, size=(24, 30))
    assert found.synthetic
    assert found.name == "synthetic rooms"
    assert found.image.shape == (10, 24, 30, 3)
    assert found.image.dtype == np.uint8
    assert found.disparity.dtype == np.float32
    assert found.disparity.min() > 1 / 15  # the longest diagonal
    assert found.disparity.max() <= 1
    assert found.scene.tolist() == [f"synthetic room {k // FRAMES}" for k in range(10)]


@pytest.mark.parametrize(
    "make", [lambda *a, **k: rooms(*a, **k).image, lambda *a, **k: rooms(*a, **k).disparity, outdoors]
)
def test_image_depends_on_its_number_and_the_seed_alone(make):
    some = make(6, seed=2, size=(16, 20))
    assert np.array_equal(some, make(6, seed=2, size=(16, 20)))
    assert np.array_equal(some[:3], make(3, seed=2, size=(16, 20)))
    assert not np.array_equal(some, make(6, seed=3, size=(16, 20)))
    assert all(not np.array_equal(some[i], some[j]) for i in range(6) for j in range(i))


def test_depth_must_be_seen_to_be_known():
    """The mean image is a bad guess, and pictures are neither black nor white nor flat."""
    found = rooms(120, size=(32, 40))
    assert found.disparity.std(axis=0).mean() > 0.15
    assert found.disparity.std(axis=0).min() > 0.1
    brightness, contrast = found.image.mean(axis=(1, 2, 3)), found.image.std(axis=(1, 2, 3))
    assert brightness.min() > 60
    assert brightness.max() < 200
    assert np.quantile(contrast, 0.1) > 10


def test_frames_of_a_room_share_its_colours():
    mean = rooms(80, seed=4, size=(16, 20)).image.mean(axis=(1, 2)).reshape(-1, FRAMES, 3)
    hue = mean / mean.sum(axis=2, keepdims=True)
    assert hue.std(axis=1).mean() < 0.7 * hue.reshape(-1, 3).std(axis=0).mean()


def test_streets_have_a_sky_above_and_a_road_below():
    found = outdoors(40, size=(32, 40))
    assert found.shape == (40, 32, 40, 3)
    assert found.dtype == np.uint8
    sky, road = found[:, :6].mean(axis=(0, 1, 2)), found[:, -6:].mean(axis=(0, 1, 2))
    assert sky[2] > sky[0] + 5
    assert np.ptp(road) < 8


@pytest.mark.parametrize("make", [rooms, outdoors])
def test_sets_that_cannot_be_made(make):
    with pytest.raises(hs.InputError, match="size"):
        make(0)
    with pytest.raises(hs.InputError, match="size"):
        make(2, size=(0, 4))
    assert len(make(1, size=(1, 1))) == 1
