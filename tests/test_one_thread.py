"""Arithmetic in small steps uses one thread of torch, and leaves the number of threads as it was."""

import threading

import pytest
import torch

import evidentia as ev
from evidentia.formulas.threads import one_thread


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_is_restored(three_threads):
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


def test_answers_of_a_mixture_leave_the_number_of_threads(three_threads):
    each = ev.StudentT(torch.full((3, 50), 4.0), torch.randn(3, 50, generator=torch.Generator().manual_seed(0)), 1.0)
    p = ev.Prediction(each, members=0)
    for answer in (p.interval(0.9), p.crps(torch.zeros(50)), p.entropy(), p.std):
        assert len(answer) == 50
        assert torch.get_num_threads() == 3
