"""The server roles' command lines: a wrong one says what is wrong and exits with 2."""

import subprocess

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["server", "--sever_port=1"], "did you mean --server_port?"),
        (
            ["server", "--server_port=x", "--resource_manager_address=h:1"],
            "--server_port takes a whole number, not 'x'",
        ),
        (["server", "--server_port=70000", "--resource_manager_address=h:1"], "--server_port takes a port"),
        (["server", "--node_type=manager"], "--node_type takes resource_manager or worker"),
        (["server"], "--resource_manager_address is missing"),
        (["server", "--resource_manager_address=h"], "takes host:port"),
        (["server", "--node_type=resource_manager", "--instance_type=cpu:0x2"], "cpu:0x2"),
        (["proxy_server", "--virtual_slice=cpu:1x2"], "did you mean --virtual_slices?"),
        (["nonsense"], "no command 'nonsense'"),
        (["up", "--slices=0"], "--slices"),
        (["up", "--name=Upper"], "lower-case"),
    ],
)
def test_wrong_arguments(binary, arguments, words):
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2, done
    assert words in done.stderr
