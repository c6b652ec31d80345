"""What is on disk is what gets installed, under one name and with exact versions."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from support import NOT_SHIPPED, PROJECT, ROOT, files_on_disk, modules_on_disk, package_folders, shipped

LISTED = PROJECT["tool"]["setuptools"]["packages"]
EXTRAS = PROJECT["project"]["optional-dependencies"]


def packages_on_disk() -> set[str]:
    return {package for package, path in files_on_disk() if path.suffix == ".py"}


def project_name(requirement: str) -> str:
    """The normalised name in a requirement: `Foo_Bar[x]>=1` is `foo-bar`."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy, so that no stale build folder can fill its gaps or be left behind."""
    source = tmp_path_factory.mktemp("source")
    for folder in package_folders().values():
        shutil.copytree(folder, source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    """The Python of a fresh environment with the wheel in it; the dependencies are borrowed from this one."""
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    fresh = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    # A path in a .pth file is searched, but .pth files found there are not obeyed: the editable install stays out.
    Path(fresh, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_every_package_on_disk_is_listed():
    missing = {name for name in packages_on_disk() - set(LISTED) if shipped(name)}
    assert not missing, f"add to packages in pyproject.toml, or to NOT_SHIPPED with a reason: {sorted(missing)}"


def test_every_listed_package_is_on_disk():
    assert set(LISTED) <= packages_on_disk()


@pytest.mark.parametrize("package", sorted(packages_on_disk() - set(NOT_SHIPPED)))
def test_package_refuses_to_be_imported_under_a_second_name(package):
    top, *inner = package.removeprefix("framelane.").split(".")
    init = package_folders()[f"framelane.{top}"].joinpath(*inner, "__init__.py")
    spec = importlib.util.spec_from_file_location(package.removeprefix("framelane."), init)
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError, match=re.escape(f"import it as '{package}'")):
        spec.loader.exec_module(module)


@pytest.mark.parametrize(("package", "folder"), package_folders().items())
def test_link_root_for_type_checkers_has_every_package(package, folder):
    assert ROOT.joinpath(".typing", *package.split(".")).resolve() == folder


def test_wheel_holds_only_this_project(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    version = PROJECT["project"]["version"]
    assert tops == {"framelane", f"framelane-{version}.dist-info"}


def test_wheel_holds_every_file_of_its_packages(wheel):
    folders = {path: name for name, path in package_folders().items()}
    expected = set()
    for package, path in files_on_disk():
        if not shipped(package) or path.suffix == ".md":
            continue
        folder = next(top for top in folders if path.is_relative_to(top))
        expected.add(folders[folder].replace(".", "/") + "/" + path.relative_to(folder).as_posix())
    missing = expected - set(zipfile.ZipFile(wheel).namelist())
    assert not missing, f"add to package-data in pyproject.toml: {sorted(missing)}"


def test_wheel_holds_nothing_that_is_not_shipped(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if not shipped(name.removesuffix(".py").replace("/", "."))]


def test_every_module_imports_from_the_installed_wheel(installed, tmp_path):
    script = """
import importlib, json, sys
import locust  # it patches sockets, which must come before anything uses them
modules, failed = json.loads(sys.argv[1]), {}
for name in modules:
    try:
        module = importlib.import_module(name)
        if not module.__file__.startswith(sys.prefix):
            failed[name] = "came from " + module.__file__
    except BaseException as error:
        failed[name] = repr(error)
print(json.dumps(failed))
"""
    names = [name for name in modules_on_disk() if not name.endswith(".__main__")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = run(installed, "-c", script, json.dumps(names), cwd=tmp_path, env=environment)
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_version_is_known_without_a_framelane_init(installed, tmp_path):
    done = run(installed, "-c", "from importlib.metadata import version; print(version('framelane'))", cwd=tmp_path)
    assert done.stdout.strip() == PROJECT["project"]["version"]


def test_command_is_installed(installed, tmp_path):
    if "framelane.server.cli" not in modules_on_disk():
        pytest.skip("there is no command line yet")
    assert "serve" in run(installed.with_name("framelane"), "--help", cwd=tmp_path).stdout


def test_constraints_pin_every_dependency_exactly():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line) for line in lines)
    wanted = [*PROJECT["project"]["dependencies"], *(item for extra in EXTRAS.values() for item in extra)]
    unpinned = {project_name(item) for item in wanted} - {line.split("==")[0] for line in lines}
    assert not unpinned, f"run `make lock`: {sorted(unpinned)}"


def test_wheel_of_the_tests_is_built_with_the_pinned_build_tool():
    assert set(PROJECT["build-system"]["requires"]) <= set(EXTRAS["dev"])
