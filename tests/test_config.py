"""Settings from the environment."""

import pytest

from monarch_async.config import Config


def test_settings_come_from_the_environment_and_go_there() -> None:
    config = Config.from_env({"MONARCH_ASYNC_RESUME_WINDOW": "3", "MONARCH_ASYNC_FOLD_LOGS": "true"})
    assert (config.resume_window, config.fold_logs) == (3.0, True)
    assert Config.from_env(config.as_env()) == config


@pytest.mark.parametrize("name", ["RESUMEWINDOW", "RESUME_WINDOWS", "resume_window", "STORE_BYTE", "TOKEN_"])
def test_a_variable_that_is_misspelt_is_not_passed_over(name: str) -> None:
    with pytest.raises(ValueError, match=rf"MONARCH_ASYNC_{name} is no setting: MONARCH_ASYNC_\w+ is\?"):
        Config.from_env({f"MONARCH_ASYNC_{name}": "3"})


def test_variables_of_others_are_theirs() -> None:
    environ = {"MONARCH_ASYNC_TOKEN": "x", "MONARCH_ASYNC_RESOURCES": "", "MONARCH_ASYNC_CHAOS_SEED": "1"}
    assert Config.from_env({**environ, "RESUMEWINDOW": "3", "MONARCH_ASYNC_MINE": "4"}) == Config()


def test_a_value_of_the_wrong_kind() -> None:
    with pytest.raises(ValueError, match="MONARCH_ASYNC_RESUME_WINDOW='soon': expected float"):
        Config.from_env({"MONARCH_ASYNC_RESUME_WINDOW": "soon"})
