"""Rules for every test: what is skipped, and why."""

import functools
import shutil
import subprocess

import pytest

pytest.register_assert_rewrite("e2e.clients", "e2e.servers")  # before any test imports them


@functools.cache
def gpu_present() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return False
    listing = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, timeout=30, check=False)
    return listing.returncode == 0 and "GPU " in listing.stdout


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not gpu_present():
        pytest.skip("no NVIDIA GPU on this machine")
