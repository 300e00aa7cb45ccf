"""Our Lua scripts. The text of each script begins with the shared sections that the script needs."""

import hashlib
import re
from functools import cache
from importlib.resources import files
from itertools import product

from ray_messaging.addressing.channels import mark_of_db

# A server has this many dbs by default. `script_at` does not find scripts that run in a db with a higher number. If
# such a script fails because our user lacks a right on the server, our error cannot name the right.
_DBS = 16
_SECTION = re.compile(r"^-- (script|shared) (\w+) -+\n", re.MULTILINE)  # the header of a section in a Lua file

# Lists of shared sections. `_SHARED` has, for each script, the shared sections that precede it.
_MOVE = ("entry_order", "move_cursor")
_SEND = ("mailbox_counts", *_MOVE, "conclude", "step_box", "channel_here", "sequence_numbers")
_LEASE = ("id_ceiling", "renew_lease")
_BOXES = ("verdict_status", "sequence_numbers", "step_box")
_STEPS = ("id_ceiling", "step_is_open", "channel_here", "step_barrier")
_DEAD_LETTERS = ("load_directory", "end_leases", "remove_mailbox", "reject_frame", "keep_failed", "drop_letters")
_SHARED: dict[str, tuple[str, ...]] = {
    "send": ("mailbox_limit", "verdict_status", "plain_frame", "send_one_frame", *_SEND),
    "large_frames": ("mailbox_limit", "verdict_status", "plain_frame"),
    "take_sender_epoch": ("raise_number",),
    "take_mailbox": ("raise_number", *_LEASE, "date_change"),
    "take_over_mailbox": ("raise_number", *_LEASE, "date_change", "take_mailbox"),
    "commit": (*_MOVE, "conclude"),
    "renew_leases": _LEASE,
    "raise_entry_ids": ("entry_order", "id_ceiling"),
    "note_written": ("entry_order",),
    **dict.fromkeys(_DEAD_LETTERS, ("entry_order", "dead_letter_retention")),
    "move_agents": (
        "mailbox_limit",
        "mailbox_counts",
        *_MOVE,
        "dead_letter_retention",
        *_STEPS,
        "date_change",
        "move_attempts",
    ),
    "give_up_move": ("move_attempts",),
    "requeue": ("mailbox_limit", "mailbox_counts", "step_box", "entry_order", "dead_letter_retention"),
    **dict.fromkeys(("join_steps", "leave_steps", "open_step", "open_for_groups"), _STEPS),
    **dict.fromkeys(("close_step", "close_collecting_step"), (*_STEPS, "cover_step")),
    "commit_step": (*_BOXES, *_STEPS, "write_to_boxes", "cover_step"),
    **dict.fromkeys(("target_steps", "hold_boxes", "read_progress", "declare_senders", "set_wait_for"), _STEPS),
    **dict.fromkeys(("take_group", "renew_driver"), ("raise_number", *_STEPS)),
    "send_to_boxes": (*_BOXES, "step_is_open", "write_to_boxes"),
    **dict.fromkeys(
        ("bus_write", "bus_drain", "bus_set_if", "bus_pop", "bus_lock", "bus_lock_number", "bus_unlock", "bus_beat"),
        ("bus",),
    ),
    "bus_take": (*_MOVE, "bus"),
}


@cache
def lua_sections() -> dict[str, tuple[str, str]]:
    """Return, by name, the kind (script or shared) and the text of each section of the Lua files."""
    found: dict[str, tuple[str, str]] = {}
    for file in (files("ray_messaging.transports") / "lua").iterdir():
        _, *parts = _SECTION.split(file.read_text())
        for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            found[name] = kind, text
    return found


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return [name for name, (kind, _) in lua_sections().items() if kind == "script"]


@cache
def script_text(name: str, *, cluster: bool, db: int = 0) -> str:
    """Return the text of a script: its flags (`#!`), the shared sections that it needs, and its own section.

    On a cluster each script begins with a check that its keys are not being migrated. The names of channels on which a
    script publishes contain `db`.
    """
    guard = ("refuse_while_moving",) if cluster else ()
    parts = [lua_sections()[part][1].strip() for part in (*guard, *_SHARED.get(name, ()), name)]
    flags = [line for part in parts for line in part.splitlines() if line.startswith("#!")]
    text = "\n".join([*flags, *("\n".join(part.splitlines()[part.startswith("#!") :]) for part in parts)])
    return text.replace("@DB", mark_of_db(db))


def script_at(sha: str, line: int) -> str | None:
    """Return a line (the first is 1) of the script with this hash, or None if there is no such script or line."""
    for name, (cluster, db) in product(script_names(), [(True, 0), *((False, db) for db in range(_DBS))]):
        if script_hash(name, cluster=cluster, db=db) == sha:
            lines = script_text(name, cluster=cluster, db=db).splitlines()
            return lines[line - 1] if 0 < line <= len(lines) else None
    return None


@cache
def script_hash(name: str, *, cluster: bool, db: int = 0) -> str:
    """Return the hash under which the server knows one of our scripts."""
    return hashlib.sha1(script_text(name, cluster=cluster, db=db).encode(), usedforsecurity=False).hexdigest()
