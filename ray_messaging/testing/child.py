"""A process that runs a model once more. The trial comes on stdin; its steps, or the model's error, go to stdout."""

import asyncio
import os
import pickle
import sys
from typing import Any

from ray_messaging.errors import StepFailed
from ray_messaging.testing.trial import Answers, Attempt, Trial, run_trial


def main() -> None:
    """Run the trial that the parent process has sent."""
    path, trial, packed, answers = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - of the process that started this one
    sys.path[:] = path
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the model may print
    with answer:
        answer.write(pickle.dumps(_run(trial, packed, answers)))


def _run(trial: Trial, packed: bytes, answers: Answers) -> list[Attempt] | StepFailed:
    def copy() -> Any:  # noqa: ANN401 - the model, its start, what it shares
        return pickle.loads(packed)  # noqa: S301 - as above

    model, start, shared = copy()
    whole = trial._replace(model=model, shared=shared, options=trial.options._replace(start=start))
    try:
        return [step[0] for step in asyncio.run(run_trial(whole, answers, copy=copy))]
    except StepFailed as error:
        return error


if __name__ == "__main__":
    main()
