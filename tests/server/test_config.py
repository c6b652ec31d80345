"""Settings: which source goes first, what is refused, and that each error names the key and where it came from."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framelane.server.config import ConfigError, Settings, load_settings, parse_options, parse_text


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "framelane.toml"
    path.write_text(text)
    return path


# -- precedence ------------------------------------------------------------------------------------------------------


def test_without_any_source_everything_is_a_default() -> None:
    settings, sources = load_settings({}, {})
    assert settings == Settings()
    assert set(sources.of.values()) == {"default"}
    assert set(sources.of) == set(Settings.__struct_fields__)


@pytest.mark.parametrize(
    ("command_line", "environment", "in_file", "port", "source"),
    [
        ({"port": 1}, {"FRAMELANE_PORT": "2"}, "port = 3", 1, "command line"),
        ({}, {"FRAMELANE_PORT": "2"}, "port = 3", 2, "FRAMELANE_PORT"),
        ({}, {}, "port = 3", 3, "framelane.toml"),
        ({}, {}, "", 8000, "default"),
    ],
)
def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, command_line: dict[str, Any], environment: dict[str, str], in_file: str, port: int, source: str
) -> None:
    settings, sources = load_settings(command_line, environment, file(tmp_path, in_file))
    assert settings.port == port
    assert sources.of["port"].endswith(source)


def test_options_of_the_pipeline_add_up_over_the_sources(tmp_path: Path) -> None:
    path = file(tmp_path, "[options]\nmax_faces = 1\ntracking = true\n")
    settings, _ = load_settings({"options": {"max_faces": "3"}}, {"FRAMELANE_OPTIONS": "tracking=false,a=b"}, path)
    assert settings.options == {"max_faces": "3", "tracking": "false", "a": "b"}


def test_keys_of_the_file_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    settings, _ = load_settings({}, {}, file(tmp_path, "max-clients = 5\nactive_slots = 2\n"))
    assert (settings.max_clients, settings.active_slots) == (5, 2)


@pytest.mark.parametrize("key", Settings.__struct_fields__)
def test_every_setting_is_also_a_variable_of_the_environment(key: str) -> None:
    default = getattr(Settings(), key)
    text = {"models": "/a:/b", "options": "a=1"}.get(key, "3" if default is None else str(default))
    settings, sources = load_settings({}, {f"FRAMELANE_{key.upper()}": text})
    assert sources.of[key] == f"FRAMELANE_{key.upper()}"
    if key not in {"models", "options"} and default is not None:
        assert getattr(settings, key) == default


def test_variables_that_name_no_setting_are_for_somebody_else() -> None:
    assert load_settings({}, {"FRAMELANE_CONFIG": "x", "FRAMELANE": "y", "PORT": "9"})[0] == Settings()


def test_lists_and_options_in_the_environment() -> None:
    assert parse_text("models", "/one::/two:") == ["/one", "/two"]
    assert parse_text("models", "") == []
    assert parse_text("options", "") == {}
    assert parse_text("device", "cuda:1") == "cuda:1"


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("port", "http", "int"),
        ("port", "65536", "<= 65535"),
        ("port", "-1", ">= 0"),
        ("workers", "0", ">= 1"),
        ("workers", "257", "<= 256"),
        ("credits", "65", "<= 64"),
        ("active_slots", "0", ">= 1"),
        ("standby_slots", "-1", ">= 0"),
        ("deadline_ms", "0", ">= 1"),
        ("deadline_ms", "0.5", "int"),
        ("max_frame_bytes", "10", ">= 1024"),
        ("mailbox_bytes", "1", ">= 1048576"),
        ("drain_limit", "601", "<= 600"),
        ("drain_limit", "nan", ">= 0"),
        ("drain_limit", "inf", "<= 600"),
        ("log_level", "LOUD", "LOUD"),
    ],
)
def test_a_wrong_value_is_refused_with_key_source_and_what_is_accepted(
    tmp_path: Path, key: str, value: str, accepted: str
) -> None:
    sources: list[tuple[str, dict[str, Any]]] = [
        ("command line", {"command_line": {key: value}}),
        (f"FRAMELANE_{key.upper()}", {"environment": {f"FRAMELANE_{key.upper()}": value}}),
        ("framelane.toml", {"file": file(tmp_path, f'{key} = "{value}"')}),
    ]
    for source, given_there in sources:
        with pytest.raises(ConfigError) as caught:
            load_settings(**{"command_line": {}, "environment": {}, **given_there})
        message = caught.value.message
        assert message.startswith(f"{key} = {value!r} (")
        assert f"{source}): " in message
        assert accepted in message, message
        assert caught.value.code == "bad_config"


def test_a_wrong_value_is_refused_also_where_a_better_source_overrules_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"port = 'x' \(.*framelane\.toml\)"):
        load_settings({"port": 1}, {}, file(tmp_path, 'port = "x"'))


def test_an_unknown_key_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'prot' \(.*framelane\.toml\); there are: host, port"):
        load_settings({}, {}, file(tmp_path, "prot = 1"))


def test_a_list_where_text_belongs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="models = '/one'"):
        load_settings({}, {}, file(tmp_path, 'models = "/one"'))


def test_a_file_that_cannot_be_read_or_is_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"configuration file .*nowhere\.toml: No such file"):
        load_settings({}, {}, tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"framelane\.toml is no TOML: .*line 1"):
        load_settings({}, {}, file(tmp_path, "port : 8000"))


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "framelane.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"framelane\.toml is no TOML"):
        load_settings({}, {}, path)


def test_a_folder_is_no_configuration_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_settings({}, {}, tmp_path)


@pytest.mark.parametrize("pair", ["", "fast", "=1"])
def test_an_option_that_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="write it as key=value"):
        parse_options([pair])


def test_an_options_value_may_hold_an_equals_sign() -> None:
    assert parse_options(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}


@given(st.sampled_from(Settings.__struct_fields__), st.text(max_size=20))
def test_any_text_in_the_environment_is_a_setting_or_a_named_error(key: str, text: str) -> None:
    said = key
    try:
        load_settings({}, {f"FRAMELANE_{key.upper()}": text})
    except ConfigError as error:
        said = error.message
    assert key in said or "key=value" in said


# -- as a whole ------------------------------------------------------------------------------------------------------


def test_every_setting_is_described() -> None:
    import typing

    for key, hint in typing.get_type_hints(Settings, include_extras=True).items():
        assert "description=" in repr(hint), key
