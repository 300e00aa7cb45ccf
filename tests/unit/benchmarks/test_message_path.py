"""The path of one message through the package stays short."""

from benchmarks.message_path import measure, table


async def test_a_message_passes_few_files_and_functions():
    paths = {path.name: path.counts() for path in await measure()}
    to_transport = paths["send, until the transport"]
    assert to_transport["files"] <= 25
    assert to_transport["functions"] <= 70
    assert to_transport["changes"] <= 45
    assert paths["send"]["functions"] > to_transport["functions"]


async def test_the_table_has_a_row_for_each_path():
    paths = await measure()
    assert [line.partition("  ")[0] for line in table(paths).splitlines()[1:]] == [path.name for path in paths]
