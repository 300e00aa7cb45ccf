"""Workflows of agent-framework on our runner without Ray, beside their own runner."""

import pytest

pytest.importorskip("agent_framework", reason="agent-framework is not here: pip install --group agent-framework")
from support.agent_workflows import ORCHESTRATIONS, SAMPLES, own, shown

from ray_messaging.compat.agent_framework import RayWorkflowRunner


@pytest.mark.parametrize("sample", [*SAMPLES, *ORCHESTRATIONS])
async def test_events_outputs_and_checkpoints_are_those_of_its_own_runner(sample):
    if sample in ORCHESTRATIONS:
        pytest.importorskip("agent_framework_orchestrations", reason="not here: agent-framework-orchestrations")
    parts = (SAMPLES | ORCHESTRATIONS)[sample]
    expected = await shown(*parts, own)
    with RayWorkflowRunner() as runner:
        assert await shown(*parts, runner.run) == expected
