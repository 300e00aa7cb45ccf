"""Code of a page is not cut off on a screen of 1,400 pixels, where a block of the site has room for 88 columns."""

import pytest
from support.doc_pages import ROOT, blocks

COLUMNS = 88
PAGES = ["README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")))]


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_has_at_most_88_columns(page):
    code = [block for block in blocks(page) if block.language in {"python", "py"}]
    assert [line for block in code for line in block.text.splitlines() if len(line) > COLUMNS] == []
