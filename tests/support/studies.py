"""Studies for tests: folders with runs that nobody has carried out, and workers in this process."""

from contextlib import nullcontext

from ray_messaging import Study
from ray_messaging.studies import batch_run as module
from ray_messaging.studies.design import design_of
from ray_messaging.studies.run_tasks import EndedRun
from ray_messaging.studies.run_workers import WorkerAnswer, run_packed
from ray_messaging.studies.study_folder import StudyFolder


def written_study(folder, parameters, replicates, outcomes, *, seed=0, digest=lambda run: run.key, planned=None):
    """Write the study of a function of a planned run, which returns outcomes or raises; return it as a Study."""
    files = StudyFolder(folder)
    runs = design_of(parameters, replicates, seed)
    with files.alone():
        files.note({"model": "town.person", "parameters": [*runs[0].row], "outcomes": [], "planned": planned})
        files.write_part(files.next_part(), [(run, _ended(run, outcomes, digest)) for run in runs])
    return Study(folder)


def _ended(run, outcomes, digest):
    try:
        return EndedRun(outcomes(run), digest(run), 0.5)
    except RuntimeError as error:
        return EndedRun({}, None, 0.5, f"RuntimeError: {error}")


class WorkersHere:
    """Workers in this process: each run is carried out when it is waited for, the last one first."""

    def __init__(self, template, count, carry_out=run_packed):
        self.template, self.count, self.carry_out, self.busy = template, count or 2, carry_out, []

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    @property
    def free(self):
        return len(self.busy) < self.count

    def start(self, planned):
        self.busy.append(planned)

    def wait(self, timeout):
        planned = self.busy.pop()
        return [WorkerAnswer(planned, self.carry_out(self.template, planned))]


def work_here(monkeypatch, carry_out=run_packed):
    """Let studies be carried out in this process."""
    monkeypatch.setattr(module, "early_workers", lambda *_given, **_named: nullcontext())
    monkeypatch.setattr(module, "workers_for", lambda template, count, **_: WorkersHere(template, count, carry_out))
