"""A Ray job: an experiment that goes on when you close your laptop.

    pip install "ray[default]"                        # the server of jobs is part of Ray's dashboard
    python examples/job.py submit http://127.0.0.1:8265 --log-dir /data/moods --follow

Ray's own command does the same, with this folder as the job's working directory:

    ray job submit --address http://127.0.0.1:8265 --working-dir examples -- python job.py run --log-dir /data/moods

The job runs on the cluster's head node. The log_dir must be absolute, or a URI such as s3://bucket/moods. A
relative log_dir would be inside the copy of the working directory, which Ray deletes.
"""

import argparse
import asyncio
import shlex
from pathlib import Path

from ray_messaging import Messaging, Steps


def person(me, inbox):
    """Take up the moods of others, and tell the next agent the new mood."""
    me.state["mood"] = sum(message.payload["mood"] for message in inbox) / 10 + me.rng.normal()
    me.send((me.id + 1) % 1000, {"mood": me.state["mood"]})


def run(plan):
    """Run the experiment on the cluster: a job has the cluster's address in RAY_ADDRESS."""
    # A job that is submitted again continues after the last committed step, with the data of the server beside the log.
    with Messaging.start("moods", steps=Steps(seed=7), log_dir=plan.log_dir, on_existing="resume") as messaging:
        result = messaging.run(person, agents=1000, groups=4, until=plan.steps)
    print(f"{result.steps} steps, {sum(result.fates.values()):,} messages")
    print(f"mood of agent 7: {result.states[7]['mood']:.6f}")


async def follow(client, job):
    """Print what the job prints, until it ends."""
    async for text in client.tail_job_logs(job):
        print(text, end="")


def submit(plan):
    """Send this file to a cluster, to be run there."""
    from ray.job_submission import JobSubmissionClient  # noqa: PLC0415 - it needs ray[default]

    client, here = JobSubmissionClient(plan.address), Path(__file__)
    command = f"python {here.name} run --steps {plan.steps} --log-dir {shlex.quote(plan.log_dir)}"
    # Packages that the nodes lack go into runtime_env, as "pip": ["openai"].
    job = client.submit_job(entrypoint=command, runtime_env={"working_dir": str(here.parent)})
    print(f"submitted {job}")
    if plan.follow:
        asyncio.run(follow(client, job))
        print(f"the job has ended: {client.get_job_status(job).value}")


def main():
    """Submit the job, or run as the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, call in (("submit", submit), ("run", run)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("--log-dir", required=True)
        command.add_argument("--steps", type=int, default=20)
    commands.choices["submit"].add_argument(
        "address", help="the address of the cluster's dashboard, such as http://127.0.0.1:8265"
    )
    commands.choices["submit"].add_argument("--follow", action="store_true", help="print what the job prints")
    plan = parser.parse_args()
    plan.call(plan)


if __name__ == "__main__":
    main()
