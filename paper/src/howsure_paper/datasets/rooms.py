"""Render synthetic rooms with exact depth, and synthetic streets as out-of-distribution images; no data is needed.

A small ray caster: boxes, balls, textures, lamps with shadows. A ray has length 1 along the optical axis, so that the
number of rays from the camera to a surface is its depth. Lengths are metres, y points up, and a camera of yaw 0 looks
along z with x to its right.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure_paper.datasets.depth import DepthSet

__all__ = ["FRAMES", "Camera", "Solid", "outdoors", "rooms", "trace"]

FRAMES = 4  # per room
_dot = partial(np.einsum, "in,in->n")
Array = NDArray[Any]  # float32, (3, N) for vectors of N pixels
Size = tuple[int, int]
Paint = Callable[[Array, Array], Array]  # the albedo (3, N) at two coordinates of a surface, in metres
Lamp = tuple[Array, Array, float]  # position, colour, and reach in metres
Scene = tuple[list["Solid"], list["Solid"], list[Lamp]]  # shell, things inside, lamps


class Solid(NamedTuple):
    """A box or a ball.

    Attributes:
        centre: of the solid.
        half: half of the box's sizes; the first is the radius of a ball.
        paint: its colours.
        yaw: angle of the box about the vertical axis.
        ball: whether it is a ball.
        hollow: whether the box is seen from inside.
    """

    centre: Array
    half: Array
    paint: Paint
    yaw: float = 0.0
    ball: bool = False
    hollow: bool = False


class Camera(NamedTuple):
    """A pinhole with a horizontal field of ``view``; angles in radians."""

    position: Array
    yaw: float = 0.0
    pitch: float = 0.0
    view: float = np.pi / 3


def rooms(count: int, seed: int = 0, size: Size = (128, 160)) -> DepthSet:
    """Return frames of furnished rooms, four per room (its ``scene``), with exact disparity.

    Frame i of a seed is the same whatever the count.
    """
    image, disparity = _blank(count, size), np.empty((count, *size), np.float32)
    for k in range(count):
        if k % FRAMES == 0:
            room = _room(np.random.default_rng([seed, 0, k // FRAMES]))
        rng = np.random.default_rng([seed, 1, k])
        color, depth = _render(room, _viewpoint(room, rng), size, ambient=rng.uniform(0.1, 0.3))
        image[k], disparity[k] = _develop(color, rng), np.minimum(1 / depth, 1)
    scene = np.array([f"synthetic room {k // FRAMES}" for k in range(count)])
    return DepthSet("synthetic rooms", image, disparity, scene, synthetic=True)


def outdoors(count: int, seed: int = 0, size: Size = (128, 160)) -> NDArray[np.uint8]:
    """Return images of synthetic streets, (N, *size, 3): the out-of-distribution set of :func:`rooms`."""
    image = _blank(count, size)
    for k in range(count):
        rng = np.random.default_rng([seed, 2, k])
        camera = Camera(_vector(rng.uniform(-3, 3), 1.6, 0), rng.normal(0, 0.12), rng.uniform(-0.15, 0.08))
        color, depth = _render(_street(rng), camera, size, ambient=rng.uniform(0.3, 0.6))
        image[k] = _develop(_air(color, depth, _rays(camera, size), rng), rng)
    return image


def trace(solids: Sequence[Solid], camera: Camera, size: Size) -> tuple[Array, Array]:
    """Return the depth along the optical axis and the number of the solid seen, both of shape ``size``.

    Where no solid is seen they are infinite and −1.
    """
    rays, position = _rays(camera, size), camera.position[:, None]
    away = np.stack([np.full(rays.shape[1], np.inf, np.float32), *(_hit(solid, position, rays) for solid in solids)])
    return reduce(np.minimum, away).reshape(size), away.argmin(0).reshape(size) - 1


def _rays(camera: Camera, size: Size) -> Array:
    """Return the ray through the centre of each pixel, row by row, (3, N)."""
    y, x = ((2 * np.arange(n) + 1 - n) * np.tan(camera.view / 2) / size[1] for n in size)
    (sy, cy), (sp, cp) = ((np.sin(angle), np.cos(angle)) for angle in (camera.yaw, camera.pitch))
    forward, right, up = np.array([[sy * cp, sp, cy * cp], [cy, 0, -sy], [-sy * sp, cp, -cy * sp]])[..., None, None]
    return np.asarray(forward + right * x - up * y[:, None], np.float32).reshape(3, -1)


def _hit(solid: Solid, start: Array, ray: Array) -> Array:
    """Return the distance from each start to the solid, in lengths of its ray; infinite where the ray misses it."""
    start, ray = _turn(start - solid.centre[:, None], solid.yaw), _turn(ray, solid.yaw)
    if solid.ball:
        a, b, c = _dot(ray, ray), _dot(start, ray), _dot(start, start) - solid.half[0] ** 2
        square = b * b - a * c
        enter, leave = -(b + np.sqrt(np.maximum(square, 0))) / a, np.where(square > 0, np.inf, -np.inf)
    else:
        inverse = 1 / (ray + np.float32(1e-12))  # a ray along a side has a zero
        middle, extent = -start * inverse, solid.half[:, None] * np.abs(inverse)
        enter, leave = reduce(np.maximum, middle - extent), reduce(np.minimum, middle + extent)
    return leave if solid.hollow else np.where((enter < leave) & (enter > 1e-4), enter, np.float32(np.inf))


def _turn(vectors: Array, yaw: float) -> Array:
    """Return vectors in the axes of a solid turned by yaw; with −yaw, from those back in the axes of the scene."""
    (x, y, z), sine, cosine = vectors, float(np.sin(yaw)), float(np.cos(yaw))
    return np.stack([cosine * x - sine * z, y, sine * x + cosine * z]) if yaw else vectors


def _render(scene: Scene, camera: Camera, size: Size, ambient: float) -> tuple[Array, Array]:
    """Return linear colour (H, W, 3) by Lambert's law, with the shadows of the things, and depth (H, W)."""
    shell, things, lamps = scene
    depth, owner = trace([*shell, *things], camera, size)
    point = camera.position[:, None] + np.minimum(depth, 1e4).ravel() * _rays(camera, size)
    normal, albedo = np.zeros_like(point), np.zeros_like(point)
    for k, solid in enumerate([*shell, *things]):
        seen = np.flatnonzero(owner == k)
        normal[:, seen], albedo[:, seen] = _surface(solid, point[:, seen])
    light = np.full_like(point, ambient)
    point += np.float32(1e-3) * normal
    for position, color, reach in lamps:
        way = position[:, None] - point
        square = _dot(way, way)
        power = np.maximum(_dot(normal, way), 0) / np.sqrt(square) / (1 + square / reach**2)
        lit = np.flatnonzero(power > 0.01)
        begin, path = point[:, lit], way[:, lit]
        for solid in things:
            power[lit[_hit(solid, begin, path) < 1]] *= np.float32(0.2)  # some light reaches a shadow
        light += color[:, None] * power
    return (albedo * light).T.reshape(*size, 3), depth


def _surface(solid: Solid, point: Array) -> tuple[Array, Array]:
    """Return the normal and the albedo at points of a solid."""
    local = _turn(point - solid.centre[:, None], solid.yaw)
    if solid.ball:
        return local / solid.half[0], solid.paint(solid.half[0] * np.arctan2(local[0], local[2]), local[1])
    scaled = local / solid.half[:, None]
    axis = np.abs(scaled).argmax(0)
    normal = np.sign(scaled) * (axis == np.arange(3)[:, None]) * np.float32(-1 if solid.hollow else 1)
    u, v = np.where(axis == 0, local[2], local[0]), np.where(axis == 1, local[2], local[1])
    return _turn(normal, -solid.yaw), solid.paint(u, v)


def _noise(lattice: Array, u: Array, v: Array) -> Array:
    """Return smooth noise in [0, 1], interpolated in a periodic lattice of 16×16 random numbers."""
    i, j = np.floor(u), np.floor(v)
    a, b = ((3 - 2 * t) * t * t for t in (u - i, v - j))
    row, column = i.astype(np.int64) & 15, j.astype(np.int64) & 15
    (p, q), (r, s) = ((lattice[k, column], lattice[k, column - 15]) for k in (row, row - 15))  # −15 is the next of 16
    return np.asarray((p * (1 - b) + q * b) * (1 - a) + (r * (1 - b) + s * b) * a)


def _texture(rng: Generator, kinds: Sequence[str], brightness: float, hue: float, scale: float = 0) -> Paint:
    """Return a paint of two random colours, mixed by a pattern of one of these kinds."""
    first, second = _colour(rng, brightness, hue), _colour(rng, brightness * rng.uniform(0.4, 1.3), hue)
    kind, scale, lattice = rng.choice(kinds), scale or rng.uniform(0.08, 0.5), rng.random((16, 16), np.float32)
    across, along = rng.normal(0, 0.7, 2).tolist()
    shares: dict[str, Paint] = {
        "flat": lambda u, _: np.zeros_like(u),
        "checks": lambda u, v: (np.floor(u) + np.floor(v)) % 2,
        "stripes": lambda u, v: np.floor(across * u + along * v) % 2,
        "windows": lambda u, v: (u % 1 > 0.4) & (v % 1 > 0.45),
        "noise": lambda u, v: (2 * _noise(lattice, u, v) + _noise(lattice, 3 * u, 3 * v)) / 3,
    }
    return lambda u, v: first[:, None] + (second - first)[:, None] * shares[kind](u / scale, v / scale)


def _room(rng: Generator) -> Scene:
    """Return a room: walls, floor and ceiling; two to seven things on the floor or the walls; one to three lamps."""
    x, z, height = rng.uniform(1.25, 4), rng.uniform(1.25, 4), rng.uniform(2.3, 3.4)
    walls = _texture(rng, ("flat", "noise", "stripes"), 0.6, 0.25)
    floor, ceiling = _texture(rng, ("checks", "stripes", "noise"), 0.35, 0.15), _texture(rng, ("flat",), 0.8, 0.15)
    shell = [Solid(_vector(0, 0, 0), _vector(x, 9, z), walls, hollow=True)]
    shell += [Solid(_vector(0, y, 0), _vector(x, 0.1, z), side) for y, side in ((-0.1, floor), (height + 0.1, ceiling))]
    things = [_thing(_vector(x, 0, z), rng) for _ in range(rng.integers(2, 8))]
    places = rng.uniform((-0.8 * x, 0.7 * height, -0.8 * z), (0.8 * x, 0.95 * height, 0.8 * z), (rng.integers(1, 4), 3))
    lamps = [(_vector(*p), rng.uniform(0.8, 2) * _colour(rng, 0.8, 0.12), rng.uniform(1, 3)) for p in places]
    return shell, things, lamps


def _thing(room: Array, rng: Generator) -> Solid:
    """Return a box or a ball on the floor, or a flat box on a wall."""
    kind = rng.choice(["box", "box", "ball", "wall"])
    place = room * _vector(*rng.uniform(-0.9, 0.9, 3))
    half = _vector(*rng.uniform((0.2, 0.15, 0.2), 0.3 + 0.12 * room + (0, 0.7, 0)))
    if kind == "wall":
        axis = rng.choice([0, 2])
        half[axis] = rng.uniform(0.02, 0.2)
        place[axis] = rng.choice([-1, 1]) * (room[axis] - half[axis])
    place[1] = {"box": half[1], "ball": half[0], "wall": rng.uniform(1, 1.7)}[kind]
    paint = _texture(rng, ("flat", "checks", "stripes", "noise"), rng.uniform(0.1, 0.7), 0.35)
    return Solid(place, half, paint, yaw=rng.uniform(0, np.pi) * (kind == "box"), ball=kind == "ball")


def _viewpoint(scene: Scene, rng: Generator) -> Camera:
    """Return a camera at a free place in the room, as high as a hand or an eye, that looks at one of the things."""
    (walls, *_), things, _ = scene
    for _ in range(30):
        place = (walls.half - 0.3) * _vector(*rng.uniform(-1, 1, 3))
        place[1] = rng.uniform(0.9, 1.8)
        ahead = things[rng.integers(len(things))].centre + rng.normal(0, 0.4, 3) - place
        free = all(np.linalg.norm(thing.centre - place) > np.linalg.norm(thing.half) + 0.2 for thing in things)
        if free and np.hypot(ahead[0], ahead[2]) > 1:
            break
    return Camera(place, np.arctan2(ahead[0], ahead[2]), rng.uniform(-0.45, 0.1), np.radians(rng.uniform(56, 64)))


def _street(rng: Generator) -> Scene:
    """Return a road along z with buildings and cars, under a sun."""
    things = []
    for side, start in ((-1, -2), (1, -2), (-1, 40), (1, 40)):
        half = _vector(*rng.uniform((3, 1.5, 5), (5, 8, 16)))
        place = _vector(side * (half[0] + rng.uniform(6, 9)), half[1], start + half[2] + rng.uniform(0, 15))
        things.append(Solid(place, half, _texture(rng, ("windows", "windows", "noise"), 0.4, 0.2, rng.uniform(2, 4))))
    for _ in range(rng.integers(1, 4)):
        x, z = rng.choice([-1.75, 1.75, -4.6, 4.6]) + rng.normal(0, 0.15), rng.uniform(7, 40)
        things.append(Solid(_vector(x, 0.6, z), _vector(0.9, 0.4, 2.1), _texture(rng, ("flat",), 0.3, 0.3)))
        things.append(Solid(_vector(x, 1.2, z), _vector(0.75, 0.25, 1.1), _texture(rng, ("flat",), 0.1, 0.05)))
    sun = 5000 * _vector(*rng.uniform((-1, 0.3, -1), (1, 1.2, 0.5))), rng.uniform(0.4, 2) * _colour(rng, 0.8, 0.12), 1e9
    lattice = rng.random((16, 16), np.float32)
    colors = np.array([_colour(rng, 0.3, 0.1), [0.45] * 3, [0.2] * 3, [1] * 3], np.float32)

    def road(u: Array, v: Array) -> Array:
        away, rough = np.abs(u), 0.75 + _noise(lattice, 2 * u, 2 * v) / 2
        mark = ((away < 0.12) & (v % 6 < 3)) | (np.abs(away - 3.4) < 0.08)
        return np.asarray(colors[0 + (away < 5.5) + (away < 3.8) + mark].T * rough)  # earth, pavement, asphalt, mark

    return [Solid(_vector(0, -1, 0), _vector(2000, 1, 2000), road)], things, [sun]


def _air(color: Array, depth: Array, rays: Array, rng: Generator) -> Array:
    """Return the colours with a clouded sky where nothing is seen, and with haze that grows with depth."""
    horizon, zenith = _colour(rng, 0.8, 0.05), _vector(0.25, 0.45, 0.85) * rng.uniform(0.6, 1)
    high = np.maximum(rays[1], 0)
    clouds = _noise(rng.random((16, 16), np.float32), *(2 * rays[::2] / (high + 0.15)))
    share = np.sqrt(high) * (1 - np.clip(3 * (clouds - rng.uniform(0.4, 0.8)), 0, 1))
    sky = (horizon[:, None] + (zenith - horizon)[:, None] * share).T.reshape(color.shape)
    return np.asarray(sky + (color - sky) * np.exp(-depth / rng.uniform(80, 300))[..., None])


def _develop(color: Array, rng: Generator) -> NDArray[np.uint8]:
    """Return the image that a camera makes of linear colours: exposure, white balance, a little blur, gamma, noise."""
    image = color * _vector(*(rng.uniform(0.9, 1.1, 3) * rng.uniform(0.16, 0.36) / max(float(color.mean()), 1e-3)))
    for view in (image, image.swapaxes(0, 1)):
        view[1:-1] = (view[:-2] + 4 * view[1:-1] + view[2:]) / 6
    image = np.sqrt(np.maximum(image, 0)) + rng.uniform(0.003, 0.012) * rng.standard_normal(image.shape, np.float32)
    return np.asarray(255 * np.clip(image, 0, 1) + 0.5, np.uint8)


def _colour(rng: Generator, brightness: float, hue: float) -> Array:
    """Return a random colour, whose channels differ from ``brightness`` by at most ``hue``."""
    return np.clip(brightness + hue * rng.uniform(-1, 1, 3), 0.02, 0.95).astype(np.float32)


def _vector(*values: float) -> Array:
    return np.array(values, np.float32)


def _blank(count: int, size: Size) -> NDArray[np.uint8]:
    """Return an array for this many images, not filled."""
    if count < 1 or min(size) < 1:
        raise InputError(f"count and size must be at least 1, got {count} and {size}")
    return np.empty((count, *size, 3), np.uint8)
