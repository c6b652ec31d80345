"""The command `density`: the campaign's figures through it, its notebook, and a search on real replicas."""

import json
import os

import msgspec
import pytest
from click.testing import CliRunner

from framelane.loadtests import density_command, tools
from framelane.loadtests.density import Layout, Objective, Search, Trial
from framelane.loadtests.density_replicas import shared_card, visible_device
from framelane.loadtests.density_report import Searched, make_report
from framelane.loadtests.density_trials import Measured, Notebook, Question, read_trials
from framelane.loadtests.processes import StartFailed
from framelane.loadtests.report import render

CAMPAIGN = """density,users,delivery,p50_ms
48,500,0.979,259
48,700,0.986,245
64,700,0.944,
80,500,0.994,132
80,700,0.994,132
80,800,0.877,
"""


def density(tmp_path, *arguments):
    done = CliRunner().invoke(density_command.main, [*arguments, "-o", str(tmp_path / "out")], catch_exceptions=False)
    path = tmp_path / "out" / "density.json"
    return done, json.loads(path.read_text()) if path.exists() else {}


def given(tmp_path, text):
    path = tmp_path / "trials.csv"
    path.write_text(text)
    return str(path)


def test_campaign_picks_80_at_700_plans_for_500_and_costs_what_it_cost(tmp_path):
    arguments = ["--trials", given(tmp_path, CAMPAIGN), "--at", "700", "--price", "aws-g6e-xlarge", "--machines", "4"]
    done, record = density(tmp_path, *arguments)
    assert done.exit_code == 0, done.output
    choice = record["data"]["choice"]
    assert (choice["best"], choice["capacity"], choice["collapse"], choice["plan_for"]) == ("80", 700, 800, 500)
    findings = "\n".join(record["findings"])
    assert "density 80: plan for 500 users; it holds the objective up to 700 users, and misses it at 800" in findings
    assert "$0.0106 per user-hour at capacity (700 users); $0.0149 per user-hour at the planned count" in findings
    assert "price as of 2026-05" in findings
    assert "98.6% at 48, 94.4% at 64, 99.4% at 80" in findings
    assert (tmp_path / "out/density.csv").read_text().count("\n") == 7
    page = (tmp_path / "out/density.html").read_text()
    assert page.count("<svg") >= 3
    assert "<script" not in page


def test_no_density_that_holds_is_the_exit_status(tmp_path):
    done, record = density(tmp_path, "--trials", given(tmp_path, CAMPAIGN), "--delivery", "0.999")
    assert done.exit_code == 1
    assert record["findings"][0] == "no density held the objective at any count"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--density", "two"], "REPLICASxWORKERSxSLOTS"),
        (["--users", "800"], "FROM:TO:STEP"),
        (["--users", "0:10:5"], "FROM:TO:STEP"),
        (["--price", "cheap"], "aws-g6e-xlarge"),
    ],
)
def test_unusable_question_is_refused(tmp_path, arguments, said):
    done, record = density(tmp_path, "--trials", given(tmp_path, CAMPAIGN), *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert record == {}


@pytest.mark.parametrize("row", ["", "x,1,0.9", "1,many,0.9", "1,10,1.5"])
def test_trials_that_cannot_be_read_are_refused_with_their_line(row):
    with pytest.raises(ValueError, match="trials"):
        read_trials(f"density,users,delivery\n{row}\n")


def seen(density=1, users=10, delivery=0.99):
    return Measured(trial=Trial(density=Layout(density), users=users, delivery=delivery, p50_ms=50.0))


def test_notebook_gives_back_what_was_kept_also_after_a_line_that_was_cut_short(tmp_path):
    notebook = Notebook(tmp_path / "new/trials.jsonl", Question())
    assert notebook.read() == []
    notebook.add(seen(users=10))
    with (tmp_path / "new/trials.jsonl").open("ab") as file:
        file.write(b'{"trial": {"dens')
    notebook.add(seen(users=20))
    assert notebook.read() == [seen(users=10), seen(users=20)]


def test_notebook_of_another_question_is_refused_with_the_difference(tmp_path):
    Notebook(tmp_path / "trials", Question(devices=("cpu",))).add(seen())
    with pytest.raises(ValueError, match=r"devices: \['cpu'\] → \['sim:8'\].*--restart"):
        Notebook(tmp_path / "trials", Question(devices=("sim:8",))).read()
    Notebook(tmp_path / "trials", Question(devices=("sim:8",))).restart()
    assert not (tmp_path / "trials").exists()


def test_search_that_was_interrupted_at_once_has_a_report_all_the_same():
    asked = Search(densities=(Layout(1),), ladder=(10,))
    report = make_report(Searched(asked, [], {}), {}, complete=False)
    assert report.findings[0].text == "no density held the objective at any count"
    assert "interrupted" in render(report)


def test_what_the_replicas_say_where_they_collapse_is_in_the_report():
    asked = Search(densities=(Layout(1),), ladder=(10, 20), confirmations=1)
    collapsed = msgspec.structs.replace(seen(users=20, delivery=0.5), limit="Slots are full.", advice="Add one.")
    report = make_report(Searched(asked, [seen(), collapsed], {}), {}, complete=True)
    assert report.findings[-1].text == "at 20 users the replicas say: Slots are full. Advice: Add one."


class World:
    """Holds so many users at a density; a density that it does not know cannot be started."""

    def __init__(self, **holds):
        self.holds = holds
        self.asked = []

    def measure(self, layout, users, tell):
        self.asked.append((str(layout), users))
        if f"d{layout}" not in self.holds:
            raise StartFailed("not enough memory")
        return seen(layout.replicas, users, 0.99 if users <= self.holds[f"d{layout}"] else 0.5)


def search(world, tmp_path, measured):
    failed = {}
    asked = Search(densities=(Layout(1), Layout(2)), ladder=(10, 20, 30, 40), objective=Objective(), confirmations=1)
    steps = tools.Steps(None, 1, tools.console())
    density_command.run_search(asked, world, Notebook(tmp_path / "trials", Question()), measured, failed, steps)
    return failed


def test_density_that_cannot_be_started_does_not_stop_the_others(tmp_path):
    measured = []
    failed = search(World(d2=20), tmp_path, measured)
    assert failed == {Layout(1): "not enough memory"}
    assert {found.trial.density for found in measured} == {Layout(2)}


def test_search_goes_on_from_the_notebook_and_measures_nothing_twice(tmp_path):
    whole, first = World(d1=20, d2=30), []
    search(whole, tmp_path, first)
    for count in range(len(first) + 1):
        rest = World(d1=20, d2=30)
        search(rest, tmp_path, first[:count])
        assert rest.asked == whole.asked[count:]


@pytest.mark.parametrize(
    ("device", "visible", "seen_as"),
    [
        ("cpu", None, ("cpu", ())),
        ("auto", "1", ("auto", ())),
        ("cuda", None, ("cuda:0", (("CUDA_VISIBLE_DEVICES", "0"),))),
        ("cuda:3", None, ("cuda:0", (("CUDA_VISIBLE_DEVICES", "3"),))),
        ("tensorrt:1", None, ("tensorrt:0", (("CUDA_VISIBLE_DEVICES", "1"),))),
        ("cuda:1", "2,3", ("cuda:0", (("CUDA_VISIBLE_DEVICES", "3"),))),
        ("cuda:1", "GPU-8e2f, GPU-3b1c", ("cuda:0", (("CUDA_VISIBLE_DEVICES", "GPU-3b1c"),))),
        ("cuda:2", "2,3", ("cuda:0", (("CUDA_VISIBLE_DEVICES", "-1"),))),
        ("cuda", "", ("cuda:0", (("CUDA_VISIBLE_DEVICES", ""),))),
        ("sim:8:group=a", None, ("sim:8:group=a", ())),
    ],
)
def test_replica_sees_its_own_card_only_and_none_that_is_hidden_here(device, visible, seen_as):
    assert visible_device(device, visible) == seen_as


@pytest.mark.parametrize(
    ("device", "told"), [("cuda:1", ("--gpu-density", "3")), ("tensorrt", ("--gpu-density", "3")), ("sim:8", ())]
)
def test_replica_is_told_how_many_share_its_card(device, told):
    assert shared_card(device, 3) == told


@pytest.mark.prove  # a minute of real replicas, whose capacity is known
@pytest.mark.timeout(400)
def test_search_on_real_replicas_finds_what_the_simulated_card_can_do(tmp_path):
    device = f"sim:20:group=density{os.getpid()}:tax=1,1.2"  # two runs a frame: 25 per second, or 2 / 1.2 as many
    arguments = ["-d", "1x1x1,2x1x1", "--device", device, "-u", "10:60:10", "-c", "1", "-s", "4", "--memory", "1500"]
    done, record = density(tmp_path, *arguments)
    assert "SIMULATED" in done.output
    found = {verdict["density"]: verdict for verdict in record["data"]["choice"]["verdicts"]}
    assert found["1x1x1"]["capacity"] == 30  # 33.3
    assert found["2x1x1"]["capacity"] == 50  # 55.6
    runs = record["data"]["runs"]
    assert all(run["pss_mib"] > 50 and run["gpu_mib"] is None for run in runs)
    again, _ = density(tmp_path, *arguments)
    assert f"{len(runs)} runs are there already" in again.output
