"""The tutorial runs as printed, in one session and one folder; so do the guides with Python."""

import pytest
import yaml
from support.doc_pages import ROOT, blocks, run_page
from typer.testing import CliRunner

from ray_messaging.cli import app

# These have programs of their own, and a page in a browser: tests/browser/test_tutorial_in_browser.py.
IN_A_BROWSER = ("The demo", "Watch a run, and change it")


def command(words):
    """Run a command of the package, and return its output."""
    program, *arguments = words
    assert program == "ray-messaging"
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code in (0, 1), found.output  # 1: runs that differ
    return found.stdout


@pytest.mark.long
def test_the_tutorial_runs_as_printed(ray_cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    run_page(
        "docs/tutorial.md",
        namespace,
        printed=lambda: capsys.readouterr().out,
        command=command,
        without=IN_A_BROWSER,
    )
    assert (tmp_path / "town.html").stat().st_size > 10_000


OF_OTHERS = {
    "guides/autogen": "autogen_core",
    "guides/langgraph": "langgraph",
    "guides/agent-framework": "agent_framework",
}


@pytest.mark.long
@pytest.mark.parametrize("page", ["forking", "guides/model-calls", "guides/own-actors", "guides/a2a", *OF_OTHERS])
def test_a_page_runs_as_printed(ray_cluster, page, tmp_path, monkeypatch, capsys):
    if package := OF_OTHERS.get(page):
        pytest.importorskip(
            package, reason=f"{package} is not here: pip install --group {page.removeprefix('guides/')}"
        )
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    run_page(f"docs/{page}.md", namespace, printed=lambda: capsys.readouterr().out, command=command)


def test_the_manifest_for_kubernetes_is_one_that_its_operator_takes():
    (manifest,) = (
        yaml.safe_load(block.text) for block in blocks("docs/guides/kubernetes.md") if block.language == "yaml"
    )
    assert yaml.safe_load((ROOT / "examples/kubernetes/rayjob.yaml").read_text()) == manifest
    dockerfile = (ROOT / "examples/kubernetes/Dockerfile").read_text().partition("FROM")[2]
    assert dockerfile in (ROOT / "docs/guides/kubernetes.md").read_text()
    cluster = manifest["spec"]["rayClusterSpec"]
    parts = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    assert all({"rayStartParams", "template"} <= part.keys() for part in parts)
    pods = [part["template"]["spec"] for part in parts]
    assert {container["image"] for pod in pods for container in pod["containers"]} == {"registry.example/society:1"}
    volumes = {volume["name"] for volume in pods[0]["volumes"]}
    assert {mount["name"] for mount in pods[0]["containers"][0]["volumeMounts"]} == volumes
    program = manifest["spec"]["entrypoint"].split()[1]
    assert (ROOT / program.removeprefix("/app/")).exists()
