// Shows the figure, table, equation or word that a reference refers to, beside the reference. Other pages are read where
// the book is served; opened as a file, only what is on the same page is shown.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  if (!matchMedia("(hover: hover)").matches) return;
  const pages = new Map();
  let box = null;
  let shownFor = null;

  const page = (address) => {
    if (address.split("#")[0] === location.href.split("#")[0]) return Promise.resolve(document);
    if (!/^https?:$/.test(location.protocol)) return Promise.resolve(null);
    const where = address.split("#")[0];
    if (!pages.has(where)) {
      const read = fetch(where).then((answer) => answer.text());
      pages.set(where, read.then((text) => new DOMParser().parseFromString(text, "text/html")).catch(() => null));
    }
    return pages.get(where);
  };

  const excerpt = (target, address) => {
    let parts = [target];
    if (target.matches("dt")) parts = [target, target.nextElementSibling];
    else if (!target.matches("figure, table, div.math")) return null;
    const copies = parts.filter(Boolean).map((part) => part.cloneNode(true));
    for (const copy of copies) {
      for (const element of [copy, ...copy.querySelectorAll("[id]")]) element.removeAttribute("id");
      for (const image of copy.querySelectorAll("img")) image.src = new URL(image.getAttribute("src"), address).href;
    }
    return copies;
  };

  const hide = () => {
    if (box) box.remove();
    if (shownFor) shownFor.removeAttribute("aria-describedby");
    box = shownFor = null;
  };

  const show = async (link) => {
    const address = link.href;
    shownFor = link;
    const source = await page(address);
    const target = source && source.getElementById(decodeURIComponent(address.split("#")[1]));
    const content = target && excerpt(target, address);
    if (!content || shownFor !== link) return;
    box = document.createElement("div");
    box.className = "qk-preview";
    box.id = "qk-preview";
    box.setAttribute("role", "tooltip");
    box.append(...content);
    document.body.append(box);
    link.setAttribute("aria-describedby", box.id);
    if (source !== document && window.MathJax && MathJax.typesetPromise) await MathJax.typesetPromise([box]);
    const at = link.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 16);
    box.style.left = `${Math.max(8, left) + scrollX}px`;
    const below = at.bottom + 6 + box.offsetHeight < innerHeight || at.top < box.offsetHeight;
    box.style.top = `${(below ? at.bottom + 6 : at.top - box.offsetHeight - 6) + scrollY}px`;
  };

  for (const link of document.querySelectorAll('article a.internal[href*="#"]')) {
    link.addEventListener("pointerenter", () => { hide(); show(link); });
    link.addEventListener("focus", () => { hide(); show(link); });
    link.addEventListener("pointerleave", hide);
    link.addEventListener("blur", hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
});
