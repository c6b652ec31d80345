"""The manifests, rendered as kustomize does and held against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from framelane.server.config import Settings
from support import ROOT

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ("cpu", "l4", "l40s")
Manifest = dict[str, Any]


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge as far as these overlays use it: tables by key, lists of named things by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base[key], patch[key]) for key in base if key in patch}
        return {**base, **patch, **both}
    if isinstance(base, list) and all("name" in each for each in (*base, *patch)):
        named = {each["name"]: each for each in patch}
        kept = [merged(each, named.pop(each["name"])) if each["name"] in named else each for each in base]
        return kept + list(named.values())
    return copy.deepcopy(patch)


def documents(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def rendered(overlay: str) -> list[Manifest]:
    """What `kubectl kustomize deploy/k8s/overlays/…` prints, for overlays that use no more than these do."""
    folder = K8S / "overlays" / overlay
    kustomization = documents(folder / "kustomization.yaml")[0]
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "images", "patches"}
    base = documents(K8S / "base" / "kustomization.yaml")[0]
    manifests = [found for name in base["resources"] for found in documents(K8S / "base" / name)]
    for patch in (documents(folder / each["path"])[0] for each in kustomization["patches"]):
        index = next(n for n, found in enumerate(manifests) if identity(found) == identity(patch))
        manifests[index] = merged(manifests[index], patch)
    for image in kustomization["images"]:
        for container in containers(manifests):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return manifests


def identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def containers(manifests: list[Manifest]) -> list[Manifest]:
    return [
        container
        for found in manifests
        if found["kind"] == "Deployment"
        for container in found["spec"]["template"]["spec"]["containers"]
    ]


def normal(value: Any) -> Any:
    """Without the order of lists, which a merge may change and Kubernetes does not mind."""
    if isinstance(value, dict):
        return {key: normal(value[key]) for key in sorted(value)}
    return sorted((normal(each) for each in value), key=json.dumps) if isinstance(value, list) else value


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_fit_the_schemas_of_kubernetes(overlay: str) -> None:
    for manifest in rendered(overlay):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_renders_the_same(overlay: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(K8S / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    theirs = {identity(found): normal(found) for found in yaml.safe_load_all(done.stdout)}
    assert theirs == {identity(found): normal(found) for found in rendered(overlay)}


def replica(overlay: str) -> tuple[Manifest, Manifest]:
    """The pod of the replicas, and its container."""
    deployment = next(found for found in rendered(overlay) if identity(found) == ("Deployment", "framelane"))
    pod = deployment["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_the_time_to_drain(overlay: str) -> None:
    pod, container = replica(overlay)
    drain = {entry["name"]: entry.get("value") for entry in container["env"]}
    needed = 5 + float(drain["FRAMELANE_DRAIN_WAIT"]) + Settings().drain_limit
    assert pod["terminationGracePeriodSeconds"] >= needed + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_of_the_pod_are_settings_and_none_comes_from_a_service(overlay: str) -> None:
    pod, container = replica(overlay)
    names = {entry["name"].removeprefix("FRAMELANE_").lower() for entry in container["env"]}
    assert names <= set(Settings.__struct_fields__)
    assert pod["enableServiceLinks"] is False, "a Service called framelane would set FRAMELANE_PORT"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_as_restricted_as_kubernetes_can_ask_for(overlay: str) -> None:
    for container in containers(rendered(overlay)):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_services_find_their_pods() -> None:
    manifests = rendered("cpu")
    pods = [found["spec"]["template"]["metadata"]["labels"] for found in manifests if found["kind"] == "Deployment"]
    selectors = [found["spec"]["selector"] for found in manifests if found["kind"] == "Service"]
    selectors += [
        found["spec"]["podSelector"]["matchLabels"] for found in manifests if found["kind"] == "NetworkPolicy"
    ]
    assert len(selectors) == 4
    assert all(any(selector.items() <= pod.items() for pod in pods) for selector in selectors)


def test_time_slices_are_read_by_the_device_plugin() -> None:
    config = yaml.safe_load(documents(K8S / "time-slicing.yaml")[0]["data"]["config.yaml"])
    assert config["sharing"]["timeSlicing"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 3}]
