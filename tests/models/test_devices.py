"""Names of devices: the whole grammar, and what is said about a name that cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.models.devices import Device, DeviceError, Simulation, parse_device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", Device("auto", name="auto")),
        ("cpu", Device("cpu", name="cpu")),
        ("cuda", Device("cuda", 0, name="cuda:0")),
        ("cuda:0", Device("cuda", 0, name="cuda:0")),
        ("cuda:13", Device("cuda", 13, name="cuda:13")),
        ("tensorrt", Device("tensorrt", 0, name="tensorrt:0")),
        ("cuda:0,2", Device("cuda", 0, name="cuda:0,2", cards=(0, 2))),
        ("tensorrt:2", Device("tensorrt", 2, name="tensorrt:2")),
    ],
)
def test_a_real_device_by_name(text: str, device: Device) -> None:
    assert parse_device(text) == device
    assert not device.simulated


@pytest.mark.parametrize(
    ("text", "simulation"),
    [
        ("sim:8", Simulation(8.0)),
        ("sim:0", Simulation(0.0)),
        ("sim:2.5", Simulation(2.5)),
        ("sim:8:batch=4", Simulation(8.0, batch=4)),
        ("sim:8:item=0.5", Simulation(8.0, item_ms=0.5)),
        ("sim:8:group=card-1", Simulation(8.0, group="card-1")),
        ("sim:8:tax=1,1.44,2.08", Simulation(8.0, group="default", tax=(1.0, 1.44, 2.08))),
        ("sim:8:group=l40s:tax=1,1.44", Simulation(8.0, group="l40s", tax=(1.0, 1.44))),
        ("sim:8:serial", Simulation(8.0, group="default", serial=True)),
        ("sim:8:serial:group=a", Simulation(8.0, group="a", serial=True)),
        (
            "sim:8:batch=2:item=1:group=b:tax=1,2:serial",
            Simulation(8.0, batch=2, item_ms=1.0, group="b", tax=(1.0, 2.0), serial=True),
        ),
    ],
)
def test_a_simulated_device(text: str, simulation: Simulation) -> None:
    device = parse_device(text)
    assert device == Device("sim", simulation=simulation, name=text)
    assert device.simulated


PARTS = ["batch=3", "item=2", "group=g", "tax=1,2", "serial"]


@given(st.permutations(PARTS), st.integers(0, len(PARTS)))
def test_the_parts_of_a_simulation_may_come_in_any_order(parts: list[str], count: int) -> None:
    simulation = parse_device(":".join(["sim:8", *parts[:count]])).simulation
    assert simulation is not None
    given_parts = set(parts[:count])
    assert simulation.batch == (3 if "batch=3" in given_parts else 1)
    assert simulation.item_ms == (2 if "item=2" in given_parts else 0)
    assert simulation.tax == ((1, 2) if "tax=1,2" in given_parts else (1,))
    assert simulation.serial == ("serial" in given_parts)
    shared = given_parts & {"tax=1,2", "serial"}
    assert simulation.group == ("g" if "group=g" in given_parts else "default" if shared else "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "CPU",
        "cpu:1",
        "auto:0",
        "cuda:x",
        "cuda:-1",
        "cuda:0:1",
        "tensorrt:1.5",
        "sim",
        "sim:",
        " sim:8",
    ],
)
def test_a_name_that_is_no_device_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        parse_device(text)
    assert repr(text) in caught.value.message
    assert "use auto, cpu, cuda[:N,…], tensorrt[:N,…] or sim:MS" in caught.value.message
    assert caught.value.code == "bad_device"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sim:fast", "fast"),
        ("sim:-1", "positive"),
        ("sim:nan", "finite"),
        ("sim:inf", "finite"),
        ("sim:8:item=-1", "positive"),
        ("sim:8:item=inf", "finite"),
        ("sim:8:item=", "could not convert"),
        ("sim:8:batch=0", "at least 1"),
        ("sim:8:batch=1.5", "1.5"),
        ("sim:8:batch", "'batch'"),
        ("sim:8:tax=0", "positive"),
        ("sim:8:tax=1,nan", "finite"),
        ("sim:8:tax=1,,2", "could not convert"),
        ("sim:8:tax", "'tax'"),
        ("sim:8:group=", "'group='"),
        ("sim:8:group=a/../b", "'group=a/../b'"),
        ("sim:8:group=" + "g" * 33, "group="),
        ("sim:8:serial=yes", "'serial=yes'"),
        ("sim:8:", "''"),
        ("sim:8:speed=2", "'speed=2'"),
    ],
)
def test_a_simulation_that_cannot_be_read_is_refused_with_the_part_and_the_grammar(text: str, named: str) -> None:
    with pytest.raises(DeviceError) as caught:
        parse_device(text)
    assert repr(text) in caught.value.message
    assert named in caught.value.message
    assert "sim:MS[:batch=N]" in caught.value.message


@given(st.text(max_size=30) | st.text("sim:.0123456789=abchtgroupxeil,-", max_size=30).map("sim:".__add__))
def test_any_text_is_a_device_or_a_device_error(text: str) -> None:
    try:
        device = parse_device(text)
    except DeviceError:
        return
    assert device.kind in {"auto", "cpu", "cuda", "tensorrt", "sim"}
