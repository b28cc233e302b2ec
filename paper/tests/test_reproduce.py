import pytest

from howsure_paper import errata
from howsure_paper.protocol import Context
from howsure_paper.toy import distribution
from howsure_paper.toy.plan import DistributionPlan


@pytest.mark.parametrize("key", [k for k in errata.ERRATA if k not in errata.OTHER_COLUMNS])
def test_each_erratum_is_one(key):
    """The paper's number is not the right one, and the check, which knows neither, sides with ours."""
    _, demonstrate = errata.ERRATA[key]
    for row in demonstrate():
        assert abs(row.paper - row.right) > max(5 * row.error, 1e-3), row
        assert abs(row.check - row.right) <= max(5 * row.error, 1e-3), row


def test_likelihood_does_not_identify_the_split():
    rows = errata.unidentified_split()
    assert [row.paper for row in rows] == pytest.approx([row.right for row in rows], abs=1e-12)
    assert min(row.check for row in rows) < 0.01
    assert max(row.check for row in rows) > 0.99


def test_penalty_inflates_the_predictive_variance():
    rows = errata.biased_by_the_penalty()
    assert [row.paper for row in rows] == pytest.approx([6.97, 2.93, 1.127], rel=2e-3)
    assert [row.right for row in rows] == pytest.approx([1.027, 1.157, 5.003], rel=2e-3)
    assert [row.check for row in rows] == pytest.approx([row.right for row in rows], rel=0.05)


def test_errata_on_the_command_line(capsys):
    errata.main(["E10"])
    printed = capsys.readouterr().out
    assert "Sec. S2.1.1" in printed
    assert "9.0000" in printed
    with pytest.raises(SystemExit) as stop:
        errata.main(["E99"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "'E99'" in error
    assert "E1, E2" in error


def test_figure_of_densities_is_written(tmp_path):
    paths = distribution.run(DistributionPlan(), Context(tmp_path / "new" / "folder"))
    assert [path.name for path in paths] == ["record.json", "distribution.png", "distribution.svg"]
    assert paths[1].stat().st_size > 10_000
