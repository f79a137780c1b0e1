"""The citation names the book, its version and its commit."""

from ci.citation import bibtex
from ci.version import Build


def test_the_citation_is_that_of_the_build(request):
    entry = bibtex(request.config.rootpath / "CITATION.cff", Build("1.2", "abc", 1_800_000_000, "smoke", "CPU"))
    assert entry.startswith("@software{qkspectra,\n  title   = {{Fingerprint, Not Blueprint")
    for field in ("year    = {2027}", "version = {1.2}", "note    = {commit abc}", "author  = {{"):
        assert field in entry
    assert entry.count("{") == entry.count("}")
