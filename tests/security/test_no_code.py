"""Received data are never executed: the package's source is searched for everything that runs data."""

import ast
from pathlib import Path

import ray_messaging

PACKAGE = Path(ray_messaging.__file__).parent
NAMES = {"eval", "exec", "compile", "__import__", "execfile"}
MODULES = {
    "pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code", "runpy", "joblib",
}  # fmt: skip
ATTRIBUTES = {"cloudpickle", "loads", "unsafe_load"}
CALLS = {"os.system", "os.popen", "np.load", "numpy.load", "pd.read_pickle", "importlib.import_module"}
# file -> the call, and the reason why it is safe
ALLOWED = {
    # Rules are code: they come by Ray call and are kept in Ray's cluster state, never on the server.
    ("cluster/rule_store.py", "cloudpickle"),
    ("cluster/rule_store.py", "loads"),
    # The name of the optional package is written there.
    ("interception/rules/openai_moderator.py", "importlib.import_module"),
    # The user names a module of their own in the shell.
    ("cli/fork_command.py", "importlib.import_module"),
    # The user's function has an import statement for that module.
    ("model/call_content.py", "importlib.import_module"),
    # Only its length is looked at.
    ("cluster/lifecycle.py", "cloudpickle"),
    ("compat/autogen.py", "cloudpickle"),  # a factory of the user's, to find whether another process can run it
    ("cluster/unpicklable.py", "cloudpickle"),  # a user's own object, to say why it cannot be sent
    # Arrays of numbers from the log's folder; numpy refuses pickles unless it is told otherwise.
    ("audiences/files.py", "np.load"),
    # JSON, from the guard process that we started, the user's files, and the OpenAI endpoint.
    ("embedded/guard_client.py", "loads"),
    ("embedded/redis_server.py", "loads"),
    ("embedded/guard.py", "loads"),
    # Between a test kit's process and the child that it starts, by its pipes.
    ("testing/trial.py", "pickle"),
    ("testing/trial.py", "loads"),
    ("testing/repeatability.py", "pickle"),
    ("testing/repeatability.py", "loads"),
    ("testing/repeatability.py", "cloudpickle"),
    # Between a program and the processes that it starts, by its pipes, or its tasks on Ray.
    ("studies/run_workers.py", "pickle"),
    ("studies/run_workers.py", "loads"),
    ("studies/run_workers.py", "cloudpickle"),
    # Bytes of a caller's own objects, which are hashed and never read.
    ("cluster/run/content_digest.py", "pickle"),
    # Copies of a caller's own objects, within one process.
    ("cluster/run/local_run.py", "pickle"),
    ("cluster/run/local_run.py", "loads"),
}


def suspects(path):
    """Return the names in a file that look like the execution of data."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                yield name
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Attribute(attr=attr) if attr in ATTRIBUTES and not is_json(node):
                yield attr
            case ast.keyword(arg=("allow_pickle" | "shell") as arg):
                yield arg
            case ast.Attribute() if ast.unparse(node) in CALLS:
                yield ast.unparse(node)


def is_json(node):
    return isinstance(node.value, ast.Name) and node.value.id == "json"


def test_no_module_runs_data():
    found = {
        (path.relative_to(PACKAGE).as_posix(), suspect) for path in PACKAGE.rglob("*.py") for suspect in suspects(path)
    }
    assert found <= ALLOWED, found - ALLOWED
    # An exception that is no longer used must be removed from the list.
    assert {("cluster/rule_store.py", "loads")} <= found


def test_scripts_get_user_texts_only_as_arguments():
    """No Lua is built from users' texts, and no script runs data."""
    for path in (PACKAGE / "transports").rglob("*.lua"):
        text = path.read_text()
        assert not {"loadstring", "load(", "dofile", "cmsgpack.unpack", "struct.unpack"} & set(text.split()), path
        assert "loadstring" not in text
    texts = [(PACKAGE / f"transports/connection/{name}.py").read_text() for name in ("link", "scripts")]
    assert "script_text(name" in texts[0]
    assert not any(".format(" in text for text in texts)
