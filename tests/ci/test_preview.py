"""What a reference refers to is shown beside it, and goes away."""

import shutil
import subprocess
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ci.build import CODE

PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>none</title><body>
<script>window.matchMedia = () => ({{ matches: true }});{script}</script>
<article><a class="internal" href="#fig-a">Figure 1</a> <a class="internal" href="#term-x">word</a>
<a class="internal" href="#part">part</a>
<figure id="fig-a"><figcaption>Caption</figcaption></figure><dl><dt id="term-x">word: </dt><dd>meaning</dd></dl>
<section id="part"><h2>Part</h2></section></article>
<script>addEventListener("DOMContentLoaded", async () => {{
  const seen = [];
  const wait = () => new Promise((resolve) => setTimeout(resolve, 50));
  for (const link of document.querySelectorAll("a")) {{
    link.dispatchEvent(new PointerEvent("pointerenter"));
    await wait();
    const box = document.querySelector(".qk-preview");
    seen.push(box ? `${{box.textContent}} ${{box.querySelectorAll("[id]").length}} ${{link.getAttribute("aria-describedby")}}` : "nothing");
    document.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Escape" }}));
  }}
  document.title = [...seen, document.querySelectorAll(".qk-preview").length].join("|");
}});</script></body></html>"""  # noqa: E501


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_references_to_figures_and_words_have_previews(tmp_path):
    page: Path = tmp_path / "page.html"
    page.write_text(PAGE.format(script=(CODE / "html" / "preview.js").read_text()), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    run = subprocess.run(
        [*command, "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    title = BeautifulSoup(run.stdout, "html.parser").title.string
    assert title == "Caption 0 qk-preview|word: meaning 0 qk-preview|nothing|0"
