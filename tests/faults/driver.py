"""A driver that sends and fetches until it is killed: python -m faults.driver FOLDER URL EXP_ID."""

import sys
import threading
from pathlib import Path

from support.bare_ray import start_ray

from faults.ray_support import a_town
from faults.ray_traffic import traffic_in


def main(folder, url, exp_id):
    start_ray()
    with a_town(exp_id=exp_id, redis=url, lease_s=2) as town, traffic_in(town, Path(folder)):
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
