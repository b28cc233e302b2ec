"""How many threads work on the networks of a table, and that the process is left as it was."""

import threading

import numpy as np
import pytest
import torch

import howsure as hs
from fits import fit
from howsure import EnsembleRegressor, EvidentialRegressor
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.tables import train
from howsure.tables.members import Member, hold_out
from howsure.tables.train import groups_of_members
from howsure.threads import one_thread, stream_in_threads
from howsure.training import Settings

SMALL = Recipe(Network((16,)), Settings(steps=60, evaluate_every=10, averaging=0.1), 16)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    return x, x[:, 0] + 0.1 * rng.normal(size=80)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def population(members, hidden=(128, 128)):
    return Evidential().build(range(members), 10, Evidential.outputs, Network(hidden))


def groups_for(networks, recipe, threads, bins=()):
    rows = torch.arange(5)
    members = [Member(rows, rows, k, bins=k in bins) for k in range(networks.members)]
    return groups_of_members(networks, members, recipe, threads)


def test_only_much_work_is_divided():
    recipe = Recipe(Network((128, 128)), Settings(), 64)
    assert groups_for(population(2), recipe, 8) == ([[0, 1]], 1)
    large, networks = Recipe(Network((256,) * 4), Settings(), 256), population(8, hidden=(256,) * 4)
    assert groups_for(networks, large, 2) == ([[0, 1, 2, 3], [4, 5, 6, 7]], 2)
    assert groups_for(networks, large, 16)[1] == 8
    assert groups_for(networks, large, 1) == ([list(range(8))], 1)


def test_networks_with_bins_are_a_group_of_their_own():
    recipe = Recipe(Network((128, 128)), Settings(), 64)
    assert groups_for(population(4), recipe, 2, bins=(1, 3)) == ([[0, 2], [1, 3]], 1)


def test_groups_change_nothing_but_the_time(table, monkeypatch, three_threads):
    x, y = table
    members = hold_out(np.arange(80), range(7))
    method = Evidential([0.0, 0.01, 0.1, 1.0, 0.3, 0.02, 0.5])
    together = fit(method, x, y, members, recipe=SMALL, device="cpu")
    monkeypatch.setattr(train, "WORTH_A_THREAD", 1)
    apart = fit(method, x, y, members, recipe=SMALL, device="cpu")
    assert np.allclose(together.predict(x).mean, apart.predict(x).mean, rtol=1e-4)
    assert torch.allclose(together.result.best_score, apart.result.best_score, rtol=1e-4)
    assert apart.result.history[-1]["running"] == 7
    assert torch.get_num_threads() == 3
    assert np.array_equal(apart.predict(x).std, fit(method, x, y, members, recipe=SMALL, device="cpu").predict(x).std)


def test_process_keeps_its_threads(table, three_threads):
    x, y = table
    model = EvidentialRegressor(members=2, steps=20).fit(x, y)
    assert torch.get_num_threads() == 3
    model.predict_interval(x)
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="NaN"):
        EnsembleRegressor(members=1, steps=5).fit(x, np.full(80, np.nan))
    assert torch.get_num_threads() == 3


def test_fits_in_several_threads_leave_the_usual_number(table, three_threads):
    x, y = table
    inside, barrier = [], threading.Barrier(2)

    def work():
        with one_thread():
            barrier.wait()
            inside.append(torch.get_num_threads())
        EnsembleRegressor(members=1, steps=20).fit(x, y)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert inside == [1, 1]
    assert torch.get_num_threads() == 3
    seen = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start(), later.join()
    assert seen == [3]


def test_number_of_threads_is_restored(three_threads):
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError), one_thread():
        raise RuntimeError
    assert torch.get_num_threads() == 3


def test_threads_that_start_meanwhile_do_not_change_it(three_threads):
    """A thread that starts inside the context begins with one; what it restores is what there was before."""
    found = []

    def work():
        with one_thread():
            found.append(torch.get_num_threads())
        found.append(torch.get_num_threads())

    with one_thread():
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert found == [1, 3]
    assert torch.get_num_threads() == 3


def test_mixture_leaves_the_number_of_threads(three_threads):
    each = hs.StudentT(torch.full((3, 50), 4.0), torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), 1.0)
    p = hs.Prediction(each, members=0)
    for answer in (p.interval(0.9), p.crps(torch.zeros(50)), p.entropy(), p.std):
        assert len(answer) == 50
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_stream_keeps_its_order_and_takes_few_items_ahead(threads):
    taken = []

    def items():
        for k in range(20):
            taken.append(k)
            yield k

    barrier = threading.Event()

    def slow_at_first(k):
        if k == 0:
            barrier.wait(0.2)  # the first result is the last to be there
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        return k * k

    found = []
    for square in stream_in_threads(slow_at_first, items(), threads):
        found.append(square)
        assert len(taken) <= len(found) + threads
    assert found == [k * k for k in range(20)]


@pytest.mark.parametrize("threads", [1, 3])
def test_stream_ends_with_the_first_error(threads):
    begun = []

    def fail_at_three(k):
        begun.append(k)
        if k == 3:
            raise ValueError("three")
        return k

    stream = stream_in_threads(fail_at_three, iter(range(100)), threads)
    with pytest.raises(ValueError, match="three"):
        list(stream)
    assert max(begun) <= 3 + threads
    before = threading.active_count()
    abandoned = stream_in_threads(abs, iter(range(100)), threads)
    assert next(abandoned) == 0
    abandoned.close()
    assert threading.active_count() == before


def test_stream_of_no_items():
    assert list(stream_in_threads(abs, [], 2)) == []


def test_predictions_of_a_stream_are_those_of_one_thread(table):
    x, y = table
    model = EvidentialRegressor(members=2, steps=20, random_state=0).fit(x, y)
    parts = [x[:30], x[30:60], x[60:]]

    def intervals(part):
        return model.predict_distribution(part).interval(0.9)

    alone = [intervals(part) for part in parts]
    for one, streamed in zip(alone, stream_in_threads(intervals, parts, 2), strict=True):
        assert np.array_equal(one, streamed)
