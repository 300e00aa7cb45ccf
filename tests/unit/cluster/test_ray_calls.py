"""The guard of all calls to Ray, and Ray's life in a process with several experiments. Here Ray is a double."""

import pickle
import threading
from types import SimpleNamespace

import pytest
import ray

from ray_messaging.cluster import ray_calls, ray_clusters
from ray_messaging.cluster.ray_calls import OurActor
from ray_messaging.errors import Closed


class Method:
    """A method of an actor's handle."""

    def __init__(self, error=None):
        self.error = error

    def remote(self, *args, **kwargs):
        if self.error is not None:
            raise self.error
        return args, kwargs

    def options(self, **options):
        return Method(ValueError(options))


class Handle:
    """An actor's handle."""

    _actor_id = 7

    def __init__(self):
        self.send, self.lost = Method(), Method(Exception("Can't find actor. It might be from a different cluster"))
        self.fails = Method(ValueError("of the call"))


@pytest.fixture
def life(monkeypatch):
    """Give Ray's life: whether it runs, and how often it was started; no call may start it by itself."""
    life = SimpleNamespace(runs=True, starts=0, lock=threading.Lock())

    def begin(**_):
        assert not life.runs
        life.starts, life.runs = life.starts + 1, True

    monkeypatch.setattr(ray, "is_initialized", lambda: life.runs)
    monkeypatch.setattr(ray, "init", begin)
    monkeypatch.setattr(ray, "shutdown", lambda: setattr(life, "runs", False))
    monkeypatch.setattr(ray_clusters, "ray_session", lambda: life.starts)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return life


def test_a_handle_is_used_as_rays():
    handle = Handle()
    actor = OurActor(handle, "town")
    assert isinstance(actor, Handle)
    assert (actor, hash(actor), actor._actor_id) == (OurActor(handle, "other"), hash(handle), 7)
    assert not hasattr(actor, "stop")
    again = pickle.loads(pickle.dumps(OurActor(Handle, "town")))
    assert (type(again), again._exp_id) == (OurActor, "town")


def test_a_call_without_ray_names_the_experiment(life):
    actor = OurActor(Handle(), "town")
    assert actor.send.remote(1, to=2) == ((1,), {"to": 2})
    with pytest.raises(ValueError, match="of the call"):
        actor.fails.remote()
    with pytest.raises(ValueError, match="num_cpus"):
        actor.send.options(num_cpus=1).remote()
    with pytest.raises(Closed, match=r"has shut down the Ray in which .* uses another") as caught:
        actor.lost.remote()
    assert caught.value.unsent
    life.runs = False
    for method in (actor.send, actor.send.options(num_cpus=1), actor.lost):
        with pytest.raises(Closed, match=r"'town' has ended: no Ray runs in this process, after ray.shutdown\(\)"):
            method.remote()
    for call in (
        lambda: ray_calls.get([]),
        lambda: ray_calls.wait([]),
        lambda: ray_calls.put(1),
        lambda: ray_calls.find_named("a", "b"),
        ray_calls.context,
        ray_calls.all_names,
    ):
        with pytest.raises(Closed, match="no Ray runs"):
            call()
    ray_calls.kill(actor)  # it has ended with its Ray
    assert life.starts == 0


@pytest.mark.parametrize("in_thread", [False, True])
def test_ray_stays_until_the_last_experiment_has_ended(life, in_thread):
    life.runs, held = False, []

    def hold():
        held.append(ray_clusters.hold_ray())

    for _ in range(3):
        if in_thread:
            thread = threading.Thread(target=hold)
            thread.start()
            thread.join()
        else:
            hold()
    assert life.starts == 1
    for session in held:
        assert life.runs
        ray_clusters.release_ray(session)
    assert not life.runs


def test_threads_that_start_at_the_same_time_start_one_ray(life):
    life.runs, held = False, []
    threads = [threading.Thread(target=lambda: held.append(ray_clusters.hold_ray())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (life.starts, len(held)) == (1, 8)
    for session in held:
        ray_clusters.release_ray(session)
    assert not life.runs


def test_a_ray_of_the_users_stays(life):
    ray_clusters.release_ray(ray_clusters.hold_ray())
    assert life.runs
    life.runs = False
    first = ray_clusters.hold_ray()
    ray.shutdown()
    ray.init()  # the user's
    ray_clusters.release_ray(first)
    assert life.runs


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_thread_of_a_ray_that_the_user_ended_ends_with_the_next_ray(life, in_thread):
    def hold():
        threads = set(threading.enumerate())
        call = threading.Thread(target=lambda: held.append(ray_clusters.hold_ray()))
        call.start()
        call.join()
        return set(threading.enumerate()) - threads

    life.runs, held = False, []
    [lasting] = hold()
    ray.shutdown()
    if in_thread:
        hold()
    else:
        held.append(ray_clusters.hold_ray())
    lasting.join(10)
    assert not lasting.is_alive()
    ray_clusters.release_ray(held[1])


def test_a_ray_that_cannot_start_says_so_in_any_thread(life, monkeypatch):
    def fail(**_):
        raise OSError("no memory")

    life.runs, caught = False, []
    monkeypatch.setattr(ray, "init", fail)

    def hold():
        try:
            ray_clusters.hold_ray()
        except OSError as error:
            caught.append(str(error))

    hold()
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert caught == ["no memory"] * 2
